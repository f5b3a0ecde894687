/* SPDX-License-Identifier: Apache-2.0 */
/* picker: the router as an endpoint picker of the Gateway API Inference Extension: an Envoy-based gateway asks it over
 * gRPC (ext_proc) which endpoint gets a request, and sends the request there itself (docs/fleet/install/inference-gateway.md).
 *
 * The picker is a client of the router's own gateway, on a thread and a loop of its own (as batches are,
 * docs/change/adr/0025): for each request it asks POST /select_and_reserve with the client's own key, and ends the reservation
 * with the answer. So keys, limits, the queue and the choice are those of the gateway. Memory: bodies up to |max_body|
 * each and |max_inflight| together; a head of 32 KiB and an answer of the gateway of 256 KiB for each request. */
#pragma once
#include "base/core/err.h"
#include "io/net/net/net.h"

struct tls_ctx;
struct telemetry;
struct picker;

struct picker_cfg {
	struct net_listen_cfg listen;
	const char *addr;        /* The gateway. */
	struct tls_ctx *tls;     /* The gateway's TLS; NULL: in clear. */
	const char *server_name; /* Name to ask the gateway for; NULL: none. */
	uint64_t max_body, max_inflight;
	const char *const *objectives; /* "NAME=PRIORITY"; live longer than the picker. */
	size_t n_objectives;
	struct telemetry *telemetry;
};
/* Is |text| an objective, "NAME=PRIORITY", with a priority as X-Cgn-Priority takes it? */
CGN_RC picker_objective_check(const char *text, struct cgn_err *err);
CGN_RC picker_new(const struct picker_cfg *cfg, struct picker **out, struct cgn_err *err);
void picker_free(struct picker **take); /* NULL-safe. Streams that are open end with UNAVAILABLE. */
