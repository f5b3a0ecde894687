# What each machine is told at its first boot: ../shared.
locals {
  single = length(var.gpu_nodes) == 0
  head   = local.single ? "single" : "router"
  # A value's spelling in JSON is TOML's for texts, numbers, booleans and lists of them.
  engine_toml = join("", concat(["[engine]\n"], [for key, value in var.engine : "${key} = ${jsonencode(value)}\n"]))
  roles = merge(
    { (local.head) = { role = local.head, engine = local.single } },
    { for name in var.gpu_nodes : name => { role = "node", engine = true } },
  )
  user_data = { for name, machine in local.roles : name => templatefile("${path.module}/../shared/user-data.yaml.tftpl", {
    setup   = file("${path.module}/../shared/cognitora-setup")
    prepare = machine.engine ? var.prepare : []
    env = join("", [for key, value in {
      CGN_ROLE             = machine.role
      CGN_NODE             = name
      CGN_CLUSTER          = var.cluster_name
      CGN_ADDRESS          = machine.role == "router" ? "10.80.0.10" : ""
      CGN_VERSION          = var.release.version
      CGN_BASE_URL         = var.release.base_url
      CGN_INSTALLER_SHA256 = var.release.installer_sha256
      CGN_PREFIX           = "/usr"
      CGN_ENGINE_TOML      = machine.engine ? base64encode(local.engine_toml) : ""
    } : "${key}='${value}'\n"])
  }) }
}
