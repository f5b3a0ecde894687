/* SPDX-License-Identifier: Apache-2.0 */
/* powerpoll, inside: a source, and its metrics. */
#pragma once
#include "joint/power/powerpoll/powerpoll.h"

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
	const char *name;            /* "redfish", "ipmi", "text", or the reader's */
	struct redfish_bmc *redfish; /* NULL but for one of these four */
	struct ipmi_bmc *ipmi;
	struct powerfetch *text;
	powerpoll_reader *read;
	void *read_user;
	struct power_reading
		*made;    /* Room for the reader: POWERPOLL_READER_READINGS; or those of a scraped text */
	size_t n_made;    /* Readings of a scraped text */
	cgn_nsec max_age; /* How long they are fresh; 0: the source is not a scraped text */
	char left_out[POWER_WHY_BYTES];
	/* Named by the settings; NULL: the program has it by itself */
	char *key;              /* All that the source was opened with: the same again is the same source */
	bool is_wanted, is_new; /* While settings are applied: named by the new ones, opened for them */
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
	struct powerpoll_source *first; /* The sources of a node stand together */
	size_t n;
	struct cgn_timer timer;
	struct power_reading *room; /* For the readings of one node */
	size_t n_room, cap_room;
	size_t closing; /* BMCs whose sessions are being ended */
	bool is_closing;
	void (*closed)(void *arg);
	void *closed_arg;
	struct cgn_grave grave;
};

/* Take the readings of the source at |now|. */
void powerpoll_look(struct powerpoll_source *s, cgn_nsec now);
/* ---- settings ----
 * Add a source, or mark the one that has |key| as wanted. */
CGN_RC powerpoll_want_redfish(struct powerpoll *p, const struct redfish_bmc_cfg *cfg, const char *key,
	struct cgn_err *err);
CGN_RC powerpoll_want_ipmi(struct powerpoll *p, const struct ipmi_bmc_cfg *cfg, const char *key,
	struct cgn_err *err);
CGN_RC powerpoll_want_text(struct powerpoll *p, const struct powerfetch_cfg *cfg, const char *key,
	struct cgn_err *err);
/* Begin to apply settings: none of the sources that have a key is wanted. */
void powerpoll_want_none(struct powerpoll *p);
/* End it: close the sources that are not wanted any more; |is_taken| false: those that are new instead. */
void powerpoll_want_end(struct powerpoll *p, bool is_taken);
/* Add a source whose readings are given to it; NULL: there are too many. */
struct powerpoll_source *powerpoll_source_add(struct powerpoll *p, const char *node, const char *name);
/* ---- scraped.c ---- */
void powerpoll_scraped_look(struct powerpoll_source *s, cgn_nsec now);
/* True when the node has not been scraped for so long that it is forgotten. */
bool powerpoll_scraped_is_over(const struct powerpoll_source *s, cgn_nsec now);
/* ---- show.c ---- */
/* The series of the node were forgotten: let the counters make theirs again, with the values that they had. */
void powerpoll_counters_renew(struct powerpoll_source *s);
/* Bring the metrics of all sources up to date. */
void powerpoll_show(struct powerpoll *p, cgn_nsec now);
/* Return the first source of the node after that of |s|; NULL: there is none. */
struct powerpoll_source *powerpoll_node_after(const struct powerpoll_source *s);
/* Sum up the power of the node whose first source is |first|; as power_sum_of. */
bool powerpoll_sum_at(struct powerpoll *p, const struct powerpoll_source *first, cgn_nsec now,
	struct power_sum *out);
