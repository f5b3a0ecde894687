# A router, and machines with engines that join by tokens: terraform output -raw join | sh
release = {
  version          = "0.1.0"
  base_url         = "https://example.net/cognitora"
  installer_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
}

machines = { router = "192.0.2.10", gpu-1 = "192.0.2.11", gpu-2 = "192.0.2.12" }

gpu_nodes = ["gpu-1", "gpu-2"]
engine = {
  kind       = "vllm"
  managed    = true
  model      = "llama3-8b"
  model_path = "meta-llama/Llama-3.1-8B-Instruct"
  binary     = "/opt/vllm/bin/vllm"
}
prepare = ["apt-get install -y python3-venv && python3 -m venv /opt/vllm && /opt/vllm/bin/pip install vllm"]
