/* SPDX-License-Identifier: Apache-2.0 */
/* energy: the power of the nodes, and what the router learns of it. Nothing happens without a GPU. */
#pragma once
#include "policy/power/energy/meter.h"
#include "policy/power/energy/park.h"
#include "policy/route/chooser/chooser.h"

struct replay;
struct replay_flight;
struct replay_server;

enum replay_power {
	REPLAY_AWAKE,
	REPLAY_LEAVING /* To be parked when it is idle. */,
	REPLAY_PARKED,
	REPLAY_WAKING
};

/* The power of a node. */
struct replay_draw {
	enum replay_power state;
	cgn_nsec since, ready; /* |ready|: when a waking node takes requests. */
	double joules;         /* So far, but for the idle time since |idle_from|. */
	cgn_nsec idle_from;    /* No step is under way since then; 0: one is. */
	struct energy_counter counter;
	struct energy_meter meter;
	uint32_t prompts, streams;
	uint64_t prompt_tokens;
	double asked_s; /* Time that the prompts of the last second take to compute. */
};

void energy_open(struct replay *r);
void energy_close(struct replay *r);
/* A step of the node begins, or its engine is idle from now on. */
void energy_step(struct replay *r, struct replay_server *n, cgn_nsec until);
/* A request is at its node; its prompt is computed; it has ended. */
void energy_came(struct replay *r, struct replay_flight *f);
void energy_first(struct replay *r, struct replay_flight *f);
void energy_left(struct replay *r, struct replay_flight *f);
void parks_second(struct replay *r);  /* Park and wake nodes. */
void energy_second(struct replay *r); /* Read the counters, and park and wake nodes. */
void energy_sum_up(struct replay *r);
/* Change the node's power. */
void energy_node_power(struct replay *r, struct replay_server *n, enum replay_power to);
/* Let nodes whose time has come leave or take requests. */
void energy_nodes_follow(struct replay *r);
