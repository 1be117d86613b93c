# An aggregated API (nodes' metrics, as `kubectl top` asks for them) and an admission webhook (which refuses
# what is named `bad`), over TLS.
import json
import ssl
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GROUP = "metrics.k8s.io/v1beta1"
NODES = {
    "kind": "NodeMetricsList",
    "apiVersion": GROUP,
    "metadata": {},
    "items": [
        {
            "metadata": {"name": name},
            "timestamp": "2026-01-01T00:00:00Z",
            "window": "30s",
            "usage": {"cpu": "250m", "memory": "64Mi"},
        }
        for name in ("shoot-0", "shoot-1")
    ],
}
RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": GROUP,
    "resources": [
        {"name": "nodes", "singularName": "", "namespaced": False, "kind": "NodeMetrics", "verbs": ["get", "list"]}
    ],
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path = self.path.split("?")[0]
        pages = {f"/apis/{GROUP}": RESOURCES, f"/apis/{GROUP}/nodes": NODES}
        self.answer(pages.get(path, {"kind": "Status"}), 200 if path in pages else 404)

    def do_POST(self):
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        allowed = request["name"] != "bad"
        response = {"uid": request["uid"], "allowed": allowed, "status": {"message": "asked in the shoot"}}
        self.answer({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})


context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tls/tls.crt", "/tls/tls.key")
server = ThreadingHTTPServer(("", 8443), Handler)
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
