# Machines that exist: for each, the two files of cloud-init's NoCloud source, for an installer's image, a PXE server or a USB stick (label CIDATA).
terraform {
  required_version = ">= 1.6"
  required_providers {
    local = { source = "hashicorp/local", version = "~> 2.5" }
  }
}

resource "local_file" "user_data" {
  for_each        = local.roles
  filename        = "${var.output_dir}/${each.key}/user-data"
  content         = local.user_data[each.key]
  file_permission = "0644"
}

resource "local_file" "meta_data" {
  for_each        = local.roles
  filename        = "${var.output_dir}/${each.key}/meta-data"
  content         = yamlencode({ instance-id = "${var.cluster_name}-${each.key}", local-hostname = "${var.cluster_name}-${each.key}" })
  file_permission = "0644"
}
