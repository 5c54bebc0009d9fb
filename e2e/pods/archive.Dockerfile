# An S3 server for scenarios: everything in memory, no credentials asked for.
FROM python:3.11-slim-bookworm
RUN pip install --no-cache-dir 'moto[server]==5.*'
USER 10001:10001
ENV MOTO_PORT=5000 HOME=/tmp
EXPOSE 5000
ENTRYPOINT ["moto_server", "-H", "0.0.0.0", "-p", "5000"]
