# One machine: router, agent and engine.
release = {
  version          = "0.1.0"
  base_url         = "https://example.net/cognitora"
  installer_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
}

client_cidrs = ["203.0.113.0/24"]
admin_cidrs  = ["203.0.113.7/32"]
location     = "fsn1"
ssh_key      = "me"
