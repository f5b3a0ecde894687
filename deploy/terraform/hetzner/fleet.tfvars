# A router, and machines with engines that join by tokens: terraform output -raw join | sh
release = {
  version          = "0.1.0"
  base_url         = "https://example.net/cognitora"
  installer_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
}

client_cidrs    = ["203.0.113.0/24"]
admin_cidrs     = ["203.0.113.7/32"]
ssh_key         = "me"
gpu_server_type = "ccx63"

gpu_nodes = ["cpu-1", "cpu-2"]
engine = {
  kind       = "llama_cpp"
  managed    = true
  model      = "tiny"
  model_path = "/var/lib/cognitora/tiny.gguf"
}
prepare = ["echo fetch llama-server and the model here"]
