terraform {
  required_version = ">= 1.6"
  required_providers {
    aws = { source = "hashicorp/aws", version = "~> 6.0" }
  }
}

provider "aws" {
  region = var.region
}

resource "aws_vpc" "cluster" {
  cidr_block           = "10.80.0.0/16"
  enable_dns_hostnames = true
  tags                 = { Name = var.cluster_name }
}

resource "aws_subnet" "cluster" {
  vpc_id                  = aws_vpc.cluster.id
  cidr_block              = "10.80.0.0/24"
  map_public_ip_on_launch = true
  tags                    = { Name = var.cluster_name }
}

resource "aws_internet_gateway" "cluster" {
  vpc_id = aws_vpc.cluster.id
}

resource "aws_route_table" "cluster" {
  vpc_id = aws_vpc.cluster.id
  route {
    cidr_block = "0.0.0.0/0"
    gateway_id = aws_internet_gateway.cluster.id
  }
}

resource "aws_route_table_association" "cluster" {
  subnet_id      = aws_subnet.cluster.id
  route_table_id = aws_route_table.cluster.id
}

resource "aws_security_group" "cluster" {
  name        = var.cluster_name
  description = "SSH from administrators, and everything between machines of the cluster"
  vpc_id      = aws_vpc.cluster.id
  ingress {
    from_port   = 22
    to_port     = 22
    protocol    = "tcp"
    cidr_blocks = var.admin_cidrs
  }
  ingress {
    from_port = 0
    to_port   = 0
    protocol  = "-1"
    self      = true
  }
  egress {
    from_port   = 0
    to_port     = 0
    protocol    = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
}

resource "aws_security_group" "gateway" {
  name        = "${var.cluster_name}-gateway"
  description = "Clients of the gateway"
  vpc_id      = aws_vpc.cluster.id
  ingress {
    from_port   = 8080
    to_port     = 8080
    protocol    = "tcp"
    cidr_blocks = var.client_cidrs
  }
}

resource "aws_instance" "machine" {
  for_each               = local.roles
  ami                    = var.ami
  instance_type          = each.value.engine ? var.gpu_instance_type : var.instance_type
  key_name               = var.key_name
  subnet_id              = aws_subnet.cluster.id
  private_ip             = each.value.role == "node" ? null : "10.80.0.10"
  vpc_security_group_ids = each.value.role == "node" ? [aws_security_group.cluster.id] : [aws_security_group.cluster.id, aws_security_group.gateway.id]
  user_data              = local.user_data[each.key]
  tags                   = { Name = "${var.cluster_name}-${each.key}" }
  metadata_options {
    http_tokens = "required"
  }
  root_block_device {
    volume_size = each.value.engine ? 200 : 20
    volume_type = "gp3"
    encrypted   = true
  }
  # A release or setting of a later plan is for machines that are new: this one has its CA, keys and state, and is upgraded in place.
  lifecycle {
    ignore_changes = [ami, key_name, user_data]
  }
}
