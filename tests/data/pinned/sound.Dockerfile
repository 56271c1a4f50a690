# syntax=docker/dockerfile:1
FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel AS build
RUN pip install --no-cache-dir packaging ninja && \
    # torch==2.8.0+cu121 is a comment
    pip install transformers==4.48.3
FROM ubuntu:22.04
ARG INDEX
RUN pip install torch==2.1.2+cu121 torchvision==0.16.2+cu121 --index-url "$INDEX"
RUN pip install 'torch==2.1.2' --index-url https://download.pytorch.org/whl/cu121 && pip install -r requirements.txt
