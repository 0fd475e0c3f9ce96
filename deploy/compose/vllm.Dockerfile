# vLLM's image with the thin client in it. The wheel comes from `make wheel`.
ARG VLLM=vllm/vllm-openai:v0.32.0
# hadolint ignore=DL3006
FROM ${VLLM}
COPY dist/kvferry-0.1.0-py3-none-any.whl /tmp/
RUN pip install --no-cache-dir /tmp/kvferry-0.1.0-py3-none-any.whl \
    && install -d -o 65531 -g 65532 /home/vllm
