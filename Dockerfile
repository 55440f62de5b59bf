# Three images: `controller` (tfrun and nothing that trains), `tensorflow` (Python and TensorFlow, nothing of ours) and `worker` (the same with
# the agent). BASE is any image with Python 3.10 to 3.13 that can make virtual environments; give a digest where it must not change.
ARG BASE=python:3.13-slim-bookworm
# What the worker is built on: the stage `tensorflow` below, or any image with Python 3.9 or newer and TensorFlow.
ARG TENSORFLOW=tensorflow

FROM ${BASE} AS base
ENV PATH=/opt/venv/bin:${PATH} PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# pip and hatchling stay in a virtual environment of their own, and so out of the final images.
FROM base AS pip
COPY requirements/build.lock /
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv \
 && /opt/pip/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r /build.lock
ENV PIP="/opt/pip/bin/pip --disable-pip-version-check --no-cache-dir --python /opt/venv/bin/python3 install --no-deps"

FROM pip AS tensorflow-packages
COPY requirements/worker.lock /
# Without what only compiling against TensorFlow, or testing it, needs: 0.4 GB.
RUN ${PIP} --require-hashes -r /worker.lock \
 && rm -rf /opt/venv/lib/python3.*/site-packages/tensorflow/include && find /opt/venv/lib -type d -name tests -prune -exec rm -rf {} + \
 && /opt/venv/bin/python3 -m compileall -q /opt/venv/lib

FROM pip AS controller-packages
COPY requirements/controller.lock /
RUN ${PIP} --require-hashes -r /controller.lock
COPY pyproject.toml README.md LICENSE /source/
COPY orchestrator /source/orchestrator
COPY worker_image /source/worker_image
COPY k8s /source/k8s
RUN /opt/pip/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels /source \
 && ${PIP} /wheels/*.whl && /opt/venv/bin/python3 -m compileall -q /opt/venv/lib

FROM base AS tensorflow
COPY --from=tensorflow-packages /opt/venv /opt/venv
USER 65532:65532
WORKDIR /tmp

FROM ${TENSORFLOW} AS worker
COPY worker_image /opt/tfrun/worker_image
ENTRYPOINT ["python3", "/opt/tfrun/worker_image"]

FROM base AS controller
COPY --from=controller-packages /opt/venv /opt/venv
USER 65532:65532
WORKDIR /tmp
ENTRYPOINT ["tfrun"]
