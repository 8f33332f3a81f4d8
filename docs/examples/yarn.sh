#!/bin/sh
# A run on four hosts of a YARN cluster, from a host with its configuration; arguments are added.
# Not run on YARN by us; the line of spark-submit was tried with a standalone master.
set -eu
: "${HADOOP_CONF_DIR:=/etc/hadoop/conf}"
export HADOOP_CONF_DIR
program=$(python -c 'import loadgen; print(loadgen.__path__[0])')/__main__.py
# The load is outside Java's heap: memoryOverhead is the memory that `loadgen plan` prints, and a
# reserve. One executor of 16 cores fits on a machine, so that four machines play.
exec spark-submit --master yarn --deploy-mode client \
    --conf spark.executor.cores=16 \
    --conf spark.executor.memory=512m \
    --conf spark.executor.memoryOverhead=16g \
    --conf spark.yarn.queue=load \
    "$program" fanin --devices 1M --broker mqtt://broker:1883 \
    --hosts 4 --spark-master yarn --spark-conf spark.executor.cores=16 --hosts-wait 3m --ship "$@"
