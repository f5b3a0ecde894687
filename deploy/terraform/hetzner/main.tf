terraform {
  required_version = ">= 1.6"
  required_providers {
    hcloud = { source = "hetznercloud/hcloud", version = "~> 1.50" }
  }
}

resource "hcloud_network" "cluster" {
  name     = var.cluster_name
  ip_range = "10.80.0.0/16"
}

resource "hcloud_network_subnet" "cluster" {
  network_id   = hcloud_network.cluster.id
  type         = "cloud"
  network_zone = "eu-central"
  ip_range     = "10.80.0.0/24"
}

# Machines reach each other by the private network, which this firewall does not filter.
resource "hcloud_firewall" "cluster" {
  name = var.cluster_name
  rule {
    direction  = "in"
    protocol   = "tcp"
    port       = "22"
    source_ips = var.admin_cidrs
  }
}

resource "hcloud_firewall" "gateway" {
  name = "${var.cluster_name}-gateway"
  rule {
    direction  = "in"
    protocol   = "tcp"
    port       = "8080"
    source_ips = var.client_cidrs
  }
}

resource "hcloud_server" "machine" {
  for_each     = local.roles
  name         = "${var.cluster_name}-${each.key}"
  image        = "debian-12"
  location     = var.location
  server_type  = each.value.role == "node" ? var.gpu_server_type : var.server_type
  ssh_keys     = [var.ssh_key]
  user_data    = local.user_data[each.key]
  firewall_ids = each.value.role == "node" ? [hcloud_firewall.cluster.id] : [hcloud_firewall.cluster.id, hcloud_firewall.gateway.id]
  labels       = { cluster = var.cluster_name, role = each.value.role }
  network {
    network_id = hcloud_network.cluster.id
    ip         = each.value.role == "node" ? null : "10.80.0.10"
  }
  depends_on = [hcloud_network_subnet.cluster]
  # A release or setting of a later plan is for machines that are new: this one has its CA, keys and state, and is upgraded in place.
  lifecycle {
    ignore_changes = [image, ssh_keys, user_data]
  }
}
