#!/usr/bin/env bash
set -e
conda create -y -n train python=3.11
conda install -y pytorch torchvision torchaudio pytorch-cuda=12.4 -c pytorch -c nvidia
pip install torch==2.2.3
