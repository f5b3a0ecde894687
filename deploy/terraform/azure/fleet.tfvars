# A router, and machines with engines that join by tokens: terraform output -raw join | sh
release = {
  version          = "0.1.0"
  base_url         = "https://example.net/cognitora"
  installer_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
}

client_cidrs    = ["203.0.113.0/24"]
admin_cidrs     = ["203.0.113.7/32"]
subscription_id = "00000000-0000-0000-0000-000000000000"
ssh_public_key  = "ssh-ed25519 AAAA me"
gpu_size        = "Standard_NC40ads_H100_v5"

gpu_nodes = ["gpu-1", "gpu-2"]
engine = {
  kind       = "vllm"
  managed    = true
  model      = "llama3-8b"
  model_path = "meta-llama/Llama-3.1-8B-Instruct"
  binary     = "/opt/vllm/bin/vllm"
}
prepare = ["apt-get install -y python3-venv && python3 -m venv /opt/vllm && /opt/vllm/bin/pip install vllm"]
