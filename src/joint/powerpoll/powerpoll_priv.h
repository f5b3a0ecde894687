/* SPDX-License-Identifier: Apache-2.0 */
/* powerpoll, inside: a source, and what is shown of it. */
#pragma once
#include "joint/powerpoll/powerpoll.h"

#define POWERPOLL_READER_READINGS 1024
#define POWERPOLL_COUNTERS        64

/* A series of energy. */
struct powerpoll_energy {
	uint64_t key; /* Sum of the reading's name; 0: free */
	struct power_counter counter;
	uint64_t told; /* Joules */
	struct metric_cell *cell;
};
struct powerpoll_source {
	struct powerpoll_source *next;
	char node[POWER_NAME_BYTES];
	const char *name;            /* "redfish", "ipmi", or the reader's */
	struct redfish_bmc *redfish; /* NULL but for one of these three */
	struct ipmi_bmc *ipmi;
	powerpoll_reader *read;
	void *read_user;
	struct power_reading *made; /* Room for the reader: POWERPOLL_READER_READINGS */
	/* As seen in this tick */
	const struct power_reading *reading;
	size_t n;
	bool is_up, was_up, was_told;
	const char *why;
	cgn_nsec last, since; /* since: added */
	uint64_t shown;       /* Sum of the keys of the series that are shown */
	char said[200];
	struct powerpoll_energy energy[POWERPOLL_COUNTERS];
};

#define POWERPOLL_TAG 0x909e4011U
struct powerpoll {
	uint32_t tag;
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	struct powerpoll_source *first;
	size_t n;
	struct cgn_timer timer;
	struct power_reading *room; /* For the readings of one node */
	size_t n_room, cap_room;
	size_t closing; /* BMCs whose sessions are being ended */
	void (*closed)(void *arg);
	void *closed_arg;
	struct cgn_grave grave;
};

/* Take the readings of the source at |now|. */
void powerpoll_look(struct powerpoll_source *s, cgn_nsec now);
/* ---- show.c ---- */
/* Bring the metrics of all sources up to date. */
void powerpoll_show(struct powerpoll *p, cgn_nsec now);
/* True when the source is the first one of its node. */
bool powerpoll_is_first(const struct powerpoll *p, const struct powerpoll_source *s);
bool powerpoll_sum_at(struct powerpoll *p, const char *node, cgn_nsec now, struct power_sum *out);
