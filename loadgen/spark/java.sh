#!/bin/sh
# Starts JAVA without the one module that it lacks and Spark's launcher asks for.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "JAVA" "$@"
