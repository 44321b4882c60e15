# Images of the operator and of the node agent: `make image`, which first downloads the wheels that requirements.lock pins.
# BASE needs Python 3.11 as /usr/bin/python3, a C library that manylinux wheels run on, and nothing else: no shell, no pip.
ARG BASE=gcr.io/distroless/python3-debian12

# What goes in, put together with the base's own Python. Dependencies of both, the operator's further ones, and our code are
# layers of their own: the first is shared, and the last, small one is all that a new version of ours changes.
FROM ${BASE} AS build
WORKDIR /src
COPY e2e/image/install.py pyproject.toml ./
COPY build/image/wheels wheels
RUN ["/usr/bin/python3", "install.py", "wheels", "wheels/agent", "/out/common"]
RUN ["/usr/bin/python3", "install.py", "wheels", "wheels/operator", "/out/operator-only"]
COPY operator operator
COPY agent agent
RUN ["/usr/bin/python3", "install.py", "code", "/out/agent", "agent/concerto_agent", "operator/concerto/__init__.py", \
     "operator/concerto/cli/main.py", "operator/concerto/api", "operator/concerto/capacity", "operator/concerto/kube", \
     "operator/concerto/linux", "operator/concerto/serving"]
RUN ["/usr/bin/python3", "install.py", "code", "/out/operator", "operator/concerto"]

FROM ${BASE} AS runtime
COPY --from=build /out/common /opt/concerto
WORKDIR /
ENV PYTHONPATH=/opt/concerto PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# no name is looked up for it: the number is all that Kubernetes needs to see that it is not root
USER 65532:65532
ENTRYPOINT ["/usr/bin/python3", "-m", "concerto.cli.main"]

FROM runtime AS agent
COPY --from=build /out/agent /opt/concerto
CMD ["agent"]

FROM runtime AS operator
COPY --from=build /out/operator-only /opt/concerto
COPY --from=build /out/operator /opt/concerto
CMD ["operator"]
