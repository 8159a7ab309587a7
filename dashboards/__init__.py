"""Grafana dashboards as code, and what Prometheus needs beside them.

`python -m dashboards.build` writes `grafana/json/`; the JSON is committed, and a test holds it
fresh.
One module a dashboard (`comparison`, `client`, `static`, `vllm`, `gpu`); what they share is in
`promql`, `style`, `panels` and `frame`. Nothing here imports a server or opens a connection.
"""
