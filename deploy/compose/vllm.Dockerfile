# vLLM's image with the thin client in it.
ARG VLLM=vllm/vllm-openai:v0.32.0
# hadolint ignore=DL3006
FROM ${VLLM}
ARG KVFERRY_VERSION=0.1.0
RUN pip install --no-cache-dir "kvferry==${KVFERRY_VERSION}" \
    && install -d -o 65531 -g 65532 /home/vllm
