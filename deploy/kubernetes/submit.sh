#!/bin/sh
# The same job by spark-submit alone, in cluster mode. Spark does not start a driver again that has died: use it to try
# things, and driver.yaml or spark-application.yaml for what must go on.
#
#   MASTER=k8s://https://API-SERVER:6443 sh deploy/kubernetes/submit.sh
set -eu

image=${IMAGE:-registry.example.com/payments:1}
claim=volumes.persistentVolumeClaim.checkpoints

exec spark-submit \
  --master "${MASTER:?the address of the API server, as k8s://https://HOST:PORT}" \
  --deploy-mode cluster \
  --name payments \
  --conf spark.kubernetes.namespace=penstock \
  --conf spark.kubernetes.authenticate.driver.serviceAccountName=penstock \
  --conf spark.kubernetes.container.image="$image" \
  --conf spark.kubernetes.driver.$claim.options.claimName=penstock-checkpoints \
  --conf spark.kubernetes.driver.$claim.mount.path=/checkpoints \
  --conf spark.kubernetes.executor.$claim.options.claimName=penstock-checkpoints \
  --conf spark.kubernetes.executor.$claim.mount.path=/checkpoints \
  --conf spark.kubernetes.driverEnv.KAFKA="${KAFKA:-kafka.example.com:9092}" \
  --conf spark.kubernetes.driverEnv.CHECKPOINTS=file:///checkpoints \
  --conf spark.kubernetes.driver.secretKeyRef.PENSTOCK_TOKEN=payments-secrets:token \
  --conf spark.executor.instances=2 \
  --conf spark.executor.cores=2 \
  --conf spark.executor.memory=2g \
  --conf spark.driver.memory=2g \
  --conf spark.sql.shuffle.partitions=4 \
  local:///opt/penstock/job.py
