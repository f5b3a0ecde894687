/* SPDX-License-Identifier: Apache-2.0 */
/* order: the order for a program or a web server outside of the cluster to add or remove nodes
 * (router.autoscaler.target; docs/fleet/autoscaling/README.md has the format), and what its answer means.
 * Pure. */
#pragma once
#include "base/core/buf.h"
#include "base/core/str.h"

#define AUTOSCALE_ORDER_ID  64
#define AUTOSCALE_ORDER_VAR 12 /* Variables of autoscale_order_env. */

/* All is borrowed. */
struct autoscale_order {
	const char *id; /* The same for each attempt of one order. */
	const char *cluster, *model, *role;
	bool up;
	uint32_t have, replicas;  /* Replicas that there are, and that there are to be. */
	const char *const *nodes; /* Ids of the nodes to remove; none with |up|. */
	size_t n_nodes;
	const char *why;
	uint64_t at_unix_ms;
};
/* Append the order as a JSON object. */
void autoscale_order_json(const struct autoscale_order *o, struct cgn_buf *out);
/* Append the order as "NAME=value" strings, each with a NUL, and point |env| at them, NULL at the end. |out| is to be
 * empty and keeps the strings. False: out of memory. */
bool autoscale_order_env(const struct autoscale_order *o, struct cgn_buf *out,
	const char *env[AUTOSCALE_ORDER_VAR + 1]);

enum autoscale_outcome {
	AUTOSCALE_DONE,
	AUTOSCALE_AGAIN,  /* The attempt failed; a later one may succeed. */
	AUTOSCALE_REFUSED /* The same order would fail again. */
};
struct autoscale_exit {
	int exec_errno, code, signal; /* As struct proc_exit. */
	bool late;                    /* The program was ended, because it took longer than allowed. */
	struct cgn_str said;          /* The last line of its output; may be empty. */
};
/* Judge the end of the program, and write a sentence about it. */
enum autoscale_outcome autoscale_exit_read(const struct autoscale_exit *e, char *why, size_t cap);
/* The same of a web server's answer. */
enum autoscale_outcome autoscale_status_read(int status, struct cgn_str body, char *why, size_t cap);
