# One machine: router, agent and engine.
release = {
  version          = "0.1.0"
  base_url         = "https://example.net/cognitora"
  installer_sha256 = "0000000000000000000000000000000000000000000000000000000000000000"
}

machines = { single = "192.0.2.10" }
