# The server and the command line of Switchboard: docker build -t switchboard .
#
# The first stage installs the package and all it needs into a virtual environment, at the versions of
# docker/constraints.txt; the second has that, Python and the authorities that hooks' certificates are checked
# against. It runs as user 999 and writes to nothing but SWITCHBOARD_DATA, for `up`, `welcome` and the like, and
# /tmp; `serve` needs neither. The number is that of postgres in db/Dockerfile: whoever is given the database's
# socket is its DBA, as docker/prepare.py is.
# It brings no PostgreSQL: SWITCHBOARD_DATABASE_URL names one. docker-compose.yml shows the whole.
FROM debian:trixie-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates 'python3=3.13.*' 'python3-venv=3.13.*' \
    && rm -rf /var/lib/apt/lists/*
# pip stays behind: it works on the environment from outside.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/switchboard
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_PYTHON=/opt/switchboard/bin/python PATH=/opt/pip/bin:$PATH
WORKDIR /src
# What changes seldom first: the packages it needs, all but the embedded PostgreSQL.
COPY pyproject.toml docker/requirements.py docker/constraints.txt ./
RUN python3 requirements.py pyproject.toml >requirements.txt \
    && pip install --constraint constraints.txt --requirement requirements.txt
COPY . .
RUN PIP_CONSTRAINT=/src/docker/constraints.txt pip install --no-deps . \
    && install -D -m 0644 -t /opt/switchboard/libexec docker/prepare.py docker/health.py

FROM debian:trixie-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates openssl 'python3=3.13.*' \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 999 switchboard \
    && useradd --system --uid 999 --gid switchboard --home-dir /var/lib/switchboard --shell /usr/sbin/nologin switchboard \
    && install -d -m 0700 -o switchboard -g switchboard /var/lib/switchboard /run/secrets/switchboard \
    && install -d -m 0755 -o switchboard -g switchboard /run/postgresql
COPY --from=build /opt/switchboard /opt/switchboard
ENV PATH=/opt/switchboard/bin:$PATH PYTHONUNBUFFERED=1 LANG=C.UTF-8 TZ=UTC \
    SWITCHBOARD_HOST=0.0.0.0 SWITCHBOARD_DATA=/var/lib/switchboard
WORKDIR /var/lib/switchboard
USER 999:999
EXPOSE 8460
HEALTHCHECK --interval=5s --timeout=5s --start-period=30s CMD ["python", "/opt/switchboard/libexec/health.py"]
ENTRYPOINT ["switchboard"]
CMD ["serve"]
