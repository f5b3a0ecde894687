terraform {
  required_version = ">= 1.6"
  required_providers {
    google = { source = "hashicorp/google", version = "~> 7.0" }
  }
}

provider "google" {
  project = var.project
  zone    = var.zone
}

resource "google_compute_network" "cluster" {
  name                    = var.cluster_name
  auto_create_subnetworks = false
}

resource "google_compute_subnetwork" "cluster" {
  name          = var.cluster_name
  network       = google_compute_network.cluster.id
  ip_cidr_range = "10.80.0.0/24"
  region        = join("-", slice(split("-", var.zone), 0, 2))
}

resource "google_compute_firewall" "admin" {
  name          = "${var.cluster_name}-admin"
  network       = google_compute_network.cluster.id
  source_ranges = var.admin_cidrs
  allow {
    protocol = "tcp"
    ports    = ["22"]
  }
}

resource "google_compute_firewall" "gateway" {
  name          = "${var.cluster_name}-gateway"
  network       = google_compute_network.cluster.id
  source_ranges = var.client_cidrs
  target_tags   = ["${var.cluster_name}-gateway"]
  allow {
    protocol = "tcp"
    ports    = ["8080"]
  }
}

resource "google_compute_firewall" "cluster" {
  name        = "${var.cluster_name}-machines"
  network     = google_compute_network.cluster.id
  source_tags = [var.cluster_name]
  target_tags = [var.cluster_name]
  allow {
    protocol = "tcp"
  }
  allow {
    protocol = "udp"
  }
}

resource "google_compute_instance" "machine" {
  for_each     = local.roles
  name         = "${var.cluster_name}-${each.key}"
  machine_type = each.value.engine ? var.gpu_machine_type : var.machine_type
  tags         = each.value.role == "node" ? [var.cluster_name] : [var.cluster_name, "${var.cluster_name}-gateway"]
  labels       = { cluster = var.cluster_name, role = each.value.role }
  metadata = {
    user-data = local.user_data[each.key]
    ssh-keys  = "cognitora:${var.ssh_public_key}"
  }
  boot_disk {
    initialize_params {
      image = var.image
      size  = each.value.engine ? 200 : 20
      type  = "pd-balanced"
    }
  }
  network_interface {
    subnetwork = google_compute_subnetwork.cluster.id
    network_ip = each.value.role == "node" ? null : "10.80.0.10"
    access_config {}
  }
  scheduling {
    on_host_maintenance = each.value.engine ? "TERMINATE" : "MIGRATE"
    automatic_restart   = true
  }
  # A release or setting of a later plan is for machines that are new: this one has its CA, keys and state, and is upgraded in place.
  lifecycle {
    ignore_changes = [boot_disk[0].initialize_params, metadata["user-data"]]
  }
}
