# The daemon's image. BASE needs Python 3.11 or newer as python3, nothing else: no shell, no package
# manager. BUILD_BASE needs pip, venv and a shell beside it, and the same Python in the same place.
ARG BASE=python:3.11-slim-bookworm
ARG BUILD_BASE=${BASE}

# hadolint ignore=DL3006
FROM ${BUILD_BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_NO_INPUT=1
WORKDIR /src
COPY requirements/build.txt requirements/server.txt requirements/
RUN python3 -m venv /opt/build \
    && /opt/build/bin/pip install --quiet --no-deps --require-hashes -r requirements/build.txt \
    && python3 -m venv --without-pip /opt/kvferry \
    && /opt/build/bin/pip --python /opt/kvferry/bin/python install --quiet --no-deps \
        --require-hashes -r requirements/server.txt
COPY deploy/image/trim.py deploy/image/
RUN /opt/kvferry/bin/python deploy/image/trim.py
COPY pyproject.toml README.md LICENSE ./
COPY proto/kvferry proto/kvferry
COPY server server
COPY client client
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/build/bin/pip --python /opt/kvferry/bin/python install --quiet --no-deps dist/*.whl \
    && mkdir /empty

# hadolint ignore=DL3006
FROM ${BASE}
COPY --from=build /opt/kvferry /opt/kvferry
COPY --from=build --chown=65532:65532 /empty /run/kvferry
COPY --from=build --chown=65532:65532 /empty /var/lib/kvferry
COPY deploy/image/config.toml /etc/kvferry/config.toml
ENV PATH=/opt/kvferry/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/kvferry \
    XDG_STATE_HOME=/var/lib \
    KVFERRY_CONFIG=/etc/kvferry/config.toml \
    KVFERRY_SOCKET_DIR=/run/kvferry/sockets \
    KVFERRY_HTTP_LISTEN=0.0.0.0:9477 \
    KVFERRY_LOG_FORMAT=json
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="kvferry" \
      org.opencontainers.image.description="vLLM's KV cache in an object store, without the store's keys in vLLM: the daemon." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
USER 65532:65532
WORKDIR /
EXPOSE 9477
VOLUME ["/run/kvferry", "/var/lib/kvferry"]
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 CMD ["kvferry", "health"]
ENTRYPOINT ["kvferry"]
CMD ["serve"]
