/* SPDX-License-Identifier: Apache-2.0 */
/* clocks: limits the SM clocks of the node's GPUs by the node's role and load (policy/power/governor), through the helper of
 * io/os/clockhold. Off unless agent.clocks.mode says otherwise; limits that an earlier agent left are lifted in any mode. One
 * loop. Memory: 45 KB once it was on. */
#pragma once
#include "agent/gpu/gpu.h"
#include "io/os/clockhold/clockhold.h"
#include "policy/power/energy/energy.h"
#include "policy/power/governor/governor.h"

struct clocks_gpu {
	struct nvml_clock_gpu is;
	uint32_t wanted_mhz, locked_mhz, asked_mhz; /* 0: no limit */
	bool asked;   /* The helper has an order for |asked_mhz| since |asked_at| */
	bool refused; /* For want of rights: not tried again before a reload */
	cgn_nsec asked_at, retry_at;
	char why[200]; /* The last order's failure; "": none */
};
enum clocks_state {
	CLOCKS_OFF,      /* No helper */
	CLOCKS_STARTING, /* The helper reads the GPUs, or waits for another one */
	CLOCKS_RUNNING,
	CLOCKS_SILENT,  /* The helper does not answer: the library does not return from a call */
	CLOCKS_STOPPED, /* The helper cannot work; |why| */
};
struct node_clocks {
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	struct cgn_timer timer;
	struct clockhold *hold; /* NULL: not running */
	bool ending;            /* The helper was told to end */
	enum clocks_state state;
	char why[200];
	char *library, *list, *record; /* Owned */
	const char *log_format;
	int mode; /* agent.clocks.mode */
	uint32_t prefill_mhz, decode_mhz;
	cgn_nsec hold_for, backoff;
	bool take_over, told;
	enum governor_role role;
	struct governor governor;
	enum governor_phase phase;
	struct energy_load load;
	struct clocks_gpu *gpu; /* NVML_MAX_GPUS; NULL: never on */
	size_t n;
};
void node_clocks_open(struct node_clocks *c, struct cgn_loop *l, struct telemetry *t,
	const struct config *cfg, const char *node_id);
void node_clocks_close(struct node_clocks *c); /* Lift all limits. Does nothing when not opened. */
/* Follow the settings of |cfg|, after a reload too. Orders that were given up are tried again. */
void node_clocks_follow(struct node_clocks *c, const struct config *cfg);
void node_clocks_load(struct node_clocks *c, const struct energy_load *load);
/* Append the object of /clocks. */
void node_clocks_fill(const struct node_clocks *c, const struct gpus *gpus, struct pb_tree *t,
	Cognitora__V1__Clocks *to);
