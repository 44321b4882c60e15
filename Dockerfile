# Images of the operator and of the node agent.
#   docker build --target operator -t concerto-operator:0.1.0 .
#   docker build --target agent -t concerto-agent:0.1.0 .
# BASE needs Python 3.11 or later with pip and a C library that PyPI's manylinux wheels run on.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
# versions as locked; only what each image needs is installed
COPY requirements.lock ./
RUN sed -E '/^ +--hash/d; s/ \\$//' requirements.lock > constraints.txt
COPY pyproject.toml README.md ./
COPY operator operator
COPY agent agent
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ONLY_BINARY=:all:

FROM build AS build-agent
RUN python3 -m pip install --target /opt/concerto --constraint constraints.txt .

FROM build AS build-operator
RUN python3 -m pip install --target /opt/concerto --constraint constraints.txt ".[operator]"

FROM ${BASE} AS runtime
ENV PYTHONPATH=/opt/concerto PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# no name is looked up for it: the number is all that Kubernetes needs to see that it is not root
USER 65532:65532
ENTRYPOINT ["python3", "-m", "concerto.cli"]

FROM runtime AS agent
COPY --from=build-agent /opt/concerto /opt/concerto
CMD ["agent"]

FROM runtime AS operator
COPY --from=build-operator /opt/concerto /opt/concerto
CMD ["operator"]
