# Three images from one file, with a plain `docker build`:
#
#   docker build --target node -t qsync-node:0.1.0 .
#   docker build --target operator -t qsync-operator:0.1.0 .
#   docker build --target spark -t qsync-spark:0.1.0 .
#
# Packages have the versions and hashes of locks/. Layers that seldom change come first, so that a
# change of the sources rebuilds the last layers only. Releases give the base with its digest:
# --build-arg PYTHON=python:3.11-slim-bookworm@sha256:...
ARG PYTHON=python:3.11-slim-bookworm
ARG INSTALLERS="/usr/local/lib/python3*/site-packages/* /usr/local/lib/python3*/ensurepip \
  /usr/local/bin/pip* /usr/local/bin/wheel* /usr/bin/apt* /usr/bin/dpkg* /usr/lib/apt /usr/lib/dpkg \
  /var/lib/apt /var/cache/apt /var/cache/debconf /etc/apt"

# The tools that build the package, and an environment without them that the images copy.
FROM ${PYTHON} AS tools
WORKDIR /src
COPY locks/build.txt locks/
RUN pip install --no-cache-dir --require-hashes -r locks/build.txt \
 && python -m venv --without-pip /opt/qsync

# Images have no installer of packages: what is removed here is in none of their layers, since
# `bare` copies the result.
FROM ${PYTHON} AS stripped
ARG INSTALLERS
# Official images of Python lack the bytecode of its library, and pods cannot write it.
RUN rm -rf $INSTALLERS \
 && python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

# Runs as a user without a name in a file system that it cannot write to: /var/lib/qsync (data),
# /run/qsync and /tmp are volumes of the pod.
FROM scratch AS bare
COPY --from=stripped / /
# USER: libraries read the name of a user that /etc/passwd does not list.
ENV PATH=/opt/qsync/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 USER=qsync \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /
USER 10001:10001

FROM tools AS node-needs
COPY locks/node.txt locks/
RUN pip --python /opt/qsync/bin/python install --no-cache-dir --require-hashes -r locks/node.txt

FROM node-needs AS node-build
COPY pyproject.toml setup.py README.md LICENSE ./
COPY node/qsync_client node/qsync_client
COPY node/qsync_node node/qsync_node
COPY node/qsync_broker node/qsync_broker
COPY operator/qsync_agent operator/qsync_agent
COPY operator/qsync_operator operator/qsync_operator
COPY operator/qsync_web operator/qsync_web
COPY operator/qsync_local operator/qsync_local
COPY operator/qsync_cli operator/qsync_cli
RUN pip wheel --no-deps --no-build-isolation -w /wheels . \
 && pip --python /opt/qsync/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM bare AS node
COPY --from=node-build /opt/qsync /opt/qsync
EXPOSE 3301 3302 8080 8081 8082
ENTRYPOINT ["python", "-m", "qsync_agent"]

FROM node-needs AS operator-needs
COPY locks/operator.txt locks/
RUN pip --python /opt/qsync/bin/python install --no-cache-dir --require-hashes -r locks/operator.txt

FROM operator-needs AS operator-build
COPY --from=node-build /wheels /wheels
RUN pip --python /opt/qsync/bin/python install --no-cache-dir --no-deps /wheels/*.whl

FROM bare AS operator
COPY --from=operator-build /opt/qsync /opt/qsync
ENTRYPOINT ["python", "-m", "qsync_operator"]

# Some 460 MB of jars: a layer that no change of our sources invalidates.
FROM tools AS spark-needs
COPY locks/spark.txt locks/
RUN pip --python /opt/qsync/bin/python install --no-cache-dir --require-hashes -r locks/spark.txt

FROM spark-needs AS spark-build
COPY pyproject.toml setup.py README.md LICENSE ./
COPY node/qsync_client node/qsync_client
COPY node/qsync_node node/qsync_node
COPY node/qsync_broker node/qsync_broker
COPY node/qsync_spark node/qsync_spark
RUN pip wheel --no-deps --no-build-isolation -w /wheels . \
 && pip --python /opt/qsync/bin/python install --no-cache-dir --no-deps /wheels/*.whl

# Drivers and executors. Hadoop's log-in needs a user with a name; tini passes signals on and reaps
# the processes that Spark's workers leave.
FROM ${PYTHON} AS spark-stripped
ARG INSTALLERS
RUN apt-get update \
 && apt-get install -y --no-install-recommends openjdk-17-jre-headless tini \
 && useradd --uid 10001 --user-group --no-create-home --home-dir /tmp qsync \
 && rm -rf $INSTALLERS \
 && python -m compileall -q "$(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"

FROM scratch AS spark
COPY --from=spark-stripped / /
COPY --from=spark-build /opt/qsync /opt/qsync
ENV PATH=/opt/qsync/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/opt/qsync/bin/python PYSPARK_DRIVER_PYTHON=/opt/qsync/bin/python
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["tini", "-g", "--", "python", "-m", "qsync_spark.pod_main"]
