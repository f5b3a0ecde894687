/* SPDX-License-Identifier: Apache-2.0 */
/* State shared by the files of scaler. scaler.c: time and decisions. signals.c: what the decision is made from.
 * seasons.c: the usual loads, and their file. orders.c: what follows from it. target.c: the same with a target outside of the cluster. events.c: the decisions that are
 * remembered. */
#pragma once
#include "joint/cluster/statefile/statefile.h"
#include "router/control/control/rest.h"
#include "router/control/scaler/group_priv.h"

#define SCALER_TAG       0x64a5ca01U
#define SCALER_NODE_TEXT 400
#define SCALER_THEN      400
#define SCALER_LEAVING   64 /* Removed nodes whose end is awaited. */
#define SCALER_CORDONS   (SCALER_GROUPS * SCALER_VICTIMS + SCALER_LEAVING)

/* A node that a target has removed. */
struct scaler_leaver {
	char node[PROTO_MAX_ID + 1]; /* Empty: the place is free. */
	uint64_t started; /* Unix time of the agent's start; another one is another node of the same name. */
	cgn_nsec until;   /* Then it takes requests again. */
};

/* A decision, as it is remembered. */
struct scaler_event {
	uint64_t at_ms;
	char model[WANTED_MAX_NAME + 1];
	int role;
	struct autoscale_decision decision;
	uint32_t have;
	bool shadow, done;            /* |done|: something follows from the decision. */
	char nodes[SCALER_NODE_TEXT]; /* Ids; empty: none. */
	char then[SCALER_THEN];       /* Says how the decision was carried out. */
};

/* A node that was ordered to wake. */
struct scaler_wake {
	cgn_nsec at; /* 0: it was not, or is ready since. */
	const struct scaler_group *group;
};

/* A cordon of the autoscaler. */
enum scaler_cordon_state {
	SCALER_CORDON_NONE,
	SCALER_CORDON_NOTED, /* The file will have it; then it is set. */
	SCALER_CORDON_SET,
	SCALER_CORDON_LIFT, /* To be lifted: of an earlier run, or that failed. */
	SCALER_CORDON_LIFTS /* The state backend lifts it. */
};
struct scaler_cordon {
	char node[PROTO_MAX_ID + 1]; /* Empty: none. */
	enum scaler_cordon_state state;
};

struct scaler {
	uint32_t tag;
	struct router *r;
	struct state_leader *leader;
	struct cgn_timer timer;
	struct statefile *seasons; /* NULL until router_scaler_load. */
	bool seasons_changed;      /* A quarter has ended that the file does not have. */
	bool pending;              /* The state backend works on an order. */
	struct scaler_group groups[SCALER_GROUPS];
	struct scaler_event events[SCALER_EVENTS];
	uint64_t n_events; /* Ever. */
	/* By slot. */
	struct autoscale_node nodes[ROUTE_MAX_NODES];
	struct scaler_wake wakes[ROUTE_MAX_NODES];
	struct scaler_leaver leaving[SCALER_LEAVING];
	struct statefile *cordons_file; /* NULL until router_scaler_load. */
	bool cordons_changed;           /* The file does not have all of |cordons|, or more. */
	struct scaler_cordon cordons[SCALER_CORDONS];
};

/* scaler.c */
/* Return the group of the model, made if there is none; NULL: there is no room for another one. */
struct scaler_group *scaler_group_find(struct scaler *s, const char *model, int role);
struct autoscale_cfg scaler_group_cfg(const struct scaler *s, const struct scaler_group *g, uint32_t all);

/* signals.c */
const char *scaler_role_text(int role);
Cognitora__V1__WantedState scaler_rest(const struct router *r);
/* Note the last second's counts of all nodes. */
void scaler_nodes_note(struct scaler *s, cgn_nsec now);
/* Fill |g->signals| and |out|. */
void scaler_group_look(struct scaler *s, struct scaler_group *g, cgn_nsec now, struct scaler_nodes *out);
/* Learn that a replica was ready after |took|. */
void scaler_wake_note(struct scaler_group *g, cgn_nsec took);
cgn_nsec scaler_wake_time(const struct scaler *s, const struct scaler_group *g);
/* Return the index in |nodes->ready| of the node whose cache is worth least of the first |n|; |n|: none. */
uint32_t scaler_least_worth(const struct scaler *s, const struct scaler_nodes *nodes, uint32_t n,
	cgn_nsec now);

/* seasons.c */
/* Learn the group's load of this second, and fill in the load that is expected in the next minutes. */
void scaler_season_note(struct scaler *s, struct scaler_group *g);
/* Write the file if a load has changed; once a second. */
void scaler_seasons_write(struct scaler *s);
void scaler_seasons_close(struct scaler *s);

/* cordons.c */
/* Cordon a node once the file names it, within two seconds, or lift such a cordon. */
void scaler_cordon(struct scaler *s, const char *node, bool on);
void scaler_cordons_step(struct scaler *s); /* Once a second. */
void scaler_cordons_close(struct scaler *s);

/* orders.c */
/* Take at most |most| nodes that may go, the cache that is worth least first. */
size_t scaler_rests_choose(const struct scaler *s, struct scaler_nodes *nodes, uint32_t most, cgn_nsec now,
	const struct cluster_node *out[]);
/* Carry out g->decision, or only say what would be done, and fill |e|. */
void scaler_carry_out(struct scaler *s, struct scaler_group *g, struct scaler_nodes *nodes, cgn_nsec now,
	struct scaler_event *e);

/* target.c */
bool scaler_has_target(const struct scaler *s); /* router.autoscaler.target is not "agents". */
/* Begin to carry out g->decision by the target, and fill |e|. Call scaler_event_note next. */
void scaler_job_begin(struct scaler *s, struct scaler_group *g, struct scaler_nodes *nodes, cgn_nsec now,
	struct scaler_event *e);
/* Follow the group's order; once a second. False: the group decides nothing now. */
bool scaler_job_step(struct scaler_group *g, cgn_nsec now);
/* Give up an order whose nodes still drain. */
void scaler_job_undo(struct scaler_group *g);
/* Count the replicas that the target was asked for and that are not there yet. */
void scaler_target_look(struct scaler *s, struct scaler_group *g, cgn_nsec now, struct scaler_nodes *out);
/* Lift the cordons of removed nodes that have left, or that did not leave. */
void scaler_leavers_step(struct scaler *s, cgn_nsec now);
void scaler_jobs_close(struct scaler *s);

/* events.c */
/* Return the text that tells how the decision with the number |event| goes on; NULL: it is forgotten. */
char *scaler_event_then(struct scaler *s, uint64_t event);
/* Remember and log the decision, unless it is the last one of the group again. */
void scaler_event_note(struct scaler *s, struct scaler_group *g, const struct scaler_event *e);
