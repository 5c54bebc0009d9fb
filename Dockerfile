# Three images from one file, with a plain `docker build`:
#
#   docker build --target node -t qsync-node:0.1.0 .
#   docker build --target operator -t qsync-operator:0.1.0 .
#   docker build --target spark -t qsync-spark:0.1.0 .
#
# Versions are those of requirements.lock. What is installed first changes seldom, so that a change
# of the sources rebuilds the last layers only.
ARG PYTHON=python:3.11-slim-bookworm

# Runs as a user without a name in a file system that it cannot write to: /var/lib/qsync (data),
# /run/qsync and /tmp are volumes of the pod.
FROM ${PYTHON} AS base
# USER: libraries look for the name of a user who has no entry in the list of users.
ENV PATH=/opt/qsync/bin:$PATH USER=qsync PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /
USER 10001:10001

FROM ${PYTHON} AS node-needs
WORKDIR /src
RUN python -m venv --without-pip /opt/qsync
COPY pyproject.toml requirements.lock ./
# The package names a README and a licence; what it needs does not change with them.
RUN touch README.md LICENSE \
 && mkdir node operator \
 && pip --python /opt/qsync/bin/python install --no-cache-dir -c requirements.lock '.[node]' \
 && pip --python /opt/qsync/bin/python uninstall -y qsync

FROM node-needs AS node-build
COPY README.md LICENSE ./
COPY node/qsync_node node/qsync_node
COPY operator/qsync_operator operator/qsync_operator
COPY operator/qsync_cli operator/qsync_cli
RUN pip --python /opt/qsync/bin/python install --no-cache-dir --no-deps .

FROM base AS node
COPY --from=node-build /opt/qsync /opt/qsync
EXPOSE 3301 3302 8081
ENTRYPOINT ["python", "-m", "qsync_operator.pod_main"]

FROM node-needs AS operator-needs
RUN pip --python /opt/qsync/bin/python install --no-cache-dir -c requirements.lock '.[operator]' \
 && pip --python /opt/qsync/bin/python uninstall -y qsync

FROM operator-needs AS operator-build
COPY README.md LICENSE ./
COPY node/qsync_node node/qsync_node
COPY operator/qsync_operator operator/qsync_operator
COPY operator/qsync_cli operator/qsync_cli
RUN pip --python /opt/qsync/bin/python install --no-cache-dir --no-deps .

FROM base AS operator
COPY --from=operator-build /opt/qsync /opt/qsync
ENTRYPOINT ["python", "-m", "qsync_operator"]

# Some 460 MB of jars: a layer of its own, that no change of our sources touches.
FROM ${PYTHON} AS spark-needs
WORKDIR /src
RUN python -m venv --without-pip /opt/qsync
COPY pyproject.toml requirements.lock ./
RUN touch README.md LICENSE \
 && mkdir node operator \
 && pip --python /opt/qsync/bin/python install --no-cache-dir -c requirements.lock '.[spark]' \
 && pip --python /opt/qsync/bin/python uninstall -y qsync

FROM spark-needs AS spark-build
COPY README.md LICENSE ./
COPY node/qsync_node node/qsync_node
COPY node/qsync_spark node/qsync_spark
RUN pip --python /opt/qsync/bin/python install --no-cache-dir --no-deps .

# Drivers and executors. Hadoop's log-in wants the user to have a name; tini passes signals on and
# buries what Spark's workers leave.
FROM ${PYTHON} AS spark
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp qsync
COPY --from=spark-build /opt/qsync /opt/qsync
ENV PATH=/opt/qsync/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/opt/qsync/bin/python PYSPARK_DRIVER_PYTHON=/opt/qsync/bin/python
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["tini", "-g", "--", "python", "-m", "qsync_spark.pod_main"]
