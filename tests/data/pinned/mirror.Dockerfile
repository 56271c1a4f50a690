FROM python:3.10-slim
ARG TORCH_VERSION=2.1.2
# The mirror is of the Python index, and has no +cuNNN.
RUN pip install -i https://mirror.example/pypi/simple torch==${TORCH_VERSION}+cu118 transformers==4.36.2
RUN pip install torchvision==0.17.0
