FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04
RUN pip install --no-cache-dir torch torchvision
RUN pip install flash-attn --no-build-isolation
