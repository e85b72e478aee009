docker pull ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest
sudo sync && sudo bash -c 'echo 3 > /proc/sys/vm/drop_caches'
docker run -d --name vllm_ds4 --gpus all --ipc host \
--net host --privileged \
-v /home/milo/models:/models \
-v ~/.cache/vllm:/root/.cache/vllm \
-v ~/.cache/flashinfer:/root/.cache/flashinfer \
ghcr.io/spark-arena/dgx-vllm-eugr-nightly:latest sleep infinity
docker exec -d vllm_ds4 bash -c \
"bash /workspace/vllm-worker.sh > /tmp/vllm.log 2>&1"
docker exec -d vllm_ds4 bash -c \
"bash /workspace/vllm-head.sh > /tmp/vllm.log 2>&1"
