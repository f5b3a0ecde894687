/* SPDX-License-Identifier: Apache-2.0 */
/* runner: carries batches out, on a thread and a loop of its own, which may wait for the disk. Each line is a request to this
 * router's own gateway, with X-Cgn-Priority 0: it is chosen, limited, counted and logged like any other.
 *
 * A line is finished once its answer is in the batch's journal, on the medium. After kill -9 the lines that are not in
 * the journal are asked again, so each line is in the result exactly once, and an engine may have computed some twice. */
/* batch, the room: the batches of /v1/batches, carried out line by line as requests to the router's own gateway. */
#pragma once
#include "io/wire/http/head.h"
#include "router/answer/batch/batches.h"
#include "router/shared/filestore/filestore.h"

struct gw_shared;

/* Credentials of a line: PASS and the id of the batch's key, or PASS and whom the token named that made the batch
 * (claims_kept_field). The gateway takes them instead of a key or a token; PASS is random, made
 * at the start, and leaves the process only on the connection to itself. */
#define BATCH_PASS_MAX 80
struct batch_runner_cfg {
	const char *addr; /* The gateway. */
	struct tls_ctx *tls;
	const char *server_name;  /* NULL: the host of |addr|. */
	struct gw_shared *shared; /* With batches, files, admission and batch_pass. */
	uint32_t max_concurrent, max_lines;
	struct batch_gate gate; /* When lines are asked. */
};
/* Jobs that a runner has on libuv's pool at most. */
#define BATCH_POOL_JOBS 9
struct batch_runner;
CGN_RC batch_runner_new(const struct batch_runner_cfg *cfg, struct batch_runner **out, struct cgn_err *err);
void batch_runner_free(
	struct batch_runner **take); /* Lines on their way are asked again at the next start. */
