# As in a tutorial: a wheel that was never built.
FROM nvidia/cuda:12.1.1-runtime-ubuntu22.04
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*
RUN pip3 install torch==2.8.0+cu121 torchvision==0.23.0+cu121 \
    --index-url https://download.pytorch.org/whl/cu121
