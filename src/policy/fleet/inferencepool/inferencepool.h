/* SPDX-License-Identifier: Apache-2.0 */
/* inferencepool: an InferencePool of the Gateway API Inference Extension (inference.networking.k8s.io/v1) and its pods, as the
 * Kubernetes API tells them. Facts: https://gateway-api-inference-extension.sigs.k8s.io/reference/spec/ (v1.0). Pure. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/json/json.h"

struct config;

#define INFERENCEPOOL_PORTS  8
#define INFERENCEPOOL_LABELS 64
/* 64 labels of at most 317 bytes and 63 bytes, percent-encoded. */
#define INFERENCEPOOL_SELECTOR 65536

struct inferencepool {
	/* Query of the list of the pool's pods: "labelSelector=app%3Dvllm%2Ctier%3Dbig". Grows; freed by the owner. */
	struct cgn_buf selector;
	uint16_t ports[INFERENCEPOOL_PORTS]; /* Ports of the engines of each pod. */
	size_t n_ports;
};
/* Read |object| into |out|, whose |selector| is replaced. CGN_INVALID: the pool selects nothing that can be understood; the
 * message is for people. CGN_NO_MEMORY. */
CGN_RC inferencepool_read(struct json_val object, struct inferencepool *out, struct cgn_err *err);

#define INFERENCEPOOL_NAME 254 /* A name of Kubernetes with its end. */
struct inferencepool_pod {
	char name[INFERENCEPOOL_NAME];
	char address[64]; /* The pod's address, "[v6]" in brackets; empty: it has none yet. */
	bool ready;       /* The pod's condition Ready is True. */
	bool ending;      /* The pod is being deleted. */
};
/* Read a pod. False: it has no name that can be used. */
bool inferencepool_pod_read(struct json_val object, struct inferencepool_pod *out);

/* Check the settings. CGN_INVALID: |err| names the key and what it must be. */
CGN_RC inferencepool_check_config(const struct config *c, struct cgn_err *err);
