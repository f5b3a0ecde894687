/* SPDX-License-Identifier: Apache-2.0 */
/* rack: the inventory of a rack's hosts (TOML), the settings of each host, and what a host says that it has. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/core/arena.h"
#include "base/core/buf.h"
#include "base/core/err.h"
#include "base/core/str.h"

#define RACK_MAX_HOSTS    128
#define RACK_MAX_SETTINGS 512 /* Settings of one host, those of [defaults] included. */
#define RACK_NAME_MAX     63  /* Bytes of a host's name. */
#define RACK_RENEW_DAYS   30  /* A certificate that ends sooner is renewed. */

/* In the order in which they are started. */
enum rack_role { RACK_ETCD, RACK_STORE, RACK_ROUTER, RACK_AGENT, RACK_METRICS, RACK_ROLES };
#define RACK_BIT(role) (1U << (role))
#define RACK_ALL       (RACK_BIT(RACK_ROLES) - 1)
const char *rack_role_name(enum rack_role role); /* "store" */
const char *rack_unit(enum rack_role role);      /* "cgn-kvcached" */

/* ---- inventory.c ---- */
struct rack_leaf {
	const char *section, *key, *value; /* TOML: "router.retry", "attempts", "3" */
	unsigned line;                     /* Line of the inventory; 0: the setting is computed. */
	bool inherited;                    /* From [defaults]. */
};
struct rack_leaves {
	struct rack_leaf *list;
	size_t n, room;
};
struct rack_host {
	const char *name, *address;          /* |address|: where the other hosts reach it. */
	const char *ssh, *user, *ssh_config; /* NULL: |address| for |ssh|; for the others ssh decides. */
	uint32_t port;                       /* 0: ssh decides. */
	bool sudo;
	unsigned roles; /* RACK_BIT(role) */
	struct rack_leaves settings;
	unsigned line;
};
struct rack {
	struct cgn_arena arena;
	const char *file, *cluster;
	struct rack_host defaults, hosts[RACK_MAX_HOSTS];
	size_t n;
};
/* Read an inventory. All texts of it live as long as it. CGN_INVALID: "FILE:LINE:COLUMN: what". */
CGN_RC rack_read(const char *file, struct cgn_str text, struct rack **out, struct cgn_err *err);
void rack_free(struct rack **take);                                           /* NULL-safe. */
const struct rack_host *rack_find(const struct rack *r, struct cgn_str name); /* NULL: there is none. */
static inline bool rack_has(const struct rack_host *h, enum rack_role role)
{
	return (h->roles & RACK_BIT(role)) != 0;
}
/* Return the |i|-th host with the role, NULL beyond the last. */
const struct rack_host *rack_nth(const struct rack *r, enum rack_role role, size_t i);

/* ---- address.c ---- */
#define RACK_ADDRESS_MAX 46
/* Return whether the text is meant as an IP address, and not as a host's name. */
bool rack_is_ip(const char *address);
/* Write an address of IPv4 or IPv6 in its usual form, "fd00::1" for "FD00:0::1", so that equal addresses are equal texts; false: the text is
 * none. */
bool rack_ip_text(const char *address, char out[RACK_ADDRESS_MAX]);

/* ---- leaf.c ---- */
/* Add a setting, or replace the one of that section and key. |value| is TOML. CGN_TOO_LARGE: no room. */
CGN_RC rack_leaf_put(struct rack *r, struct rack_leaves *to, const struct rack_leaf *leaf,
	struct cgn_err *err);
/* Append a text as TOML; false, with nothing appended, for a text that is not UTF-8 or has control characters. */
bool rack_quote(struct cgn_buf *out, struct cgn_str s);
const char *rack_leaf_find(const struct rack_leaves *in, const char *section, const char *key);

/* ---- render.c ---- */
/* Append the host's cognitora.toml. CGN_INVALID: a setting of the inventory is wrong; the message has its line. */
CGN_RC rack_settings(struct rack *r, const struct rack_host *h, struct cgn_buf *out, struct cgn_err *err);
/* Append the environment of the host's etcd. */
void rack_etcd_env(const struct rack *r, const struct rack_host *h, struct cgn_buf *out);
/* Append the ports that others must reach on the host: "tcp 9090, udp 7091". */
void rack_ports(const struct rack_host *h, struct cgn_buf *out);
/* Write HOST:PORT of what listens at |section|.|key|, as other hosts reach it; |port| is the default. */
void rack_endpoint(const struct rack_host *h, const char *section, const char *key, const char *port,
	struct cgn_buf *out);

/* ---- members.c: who joins and leaves an etcd that runs ---- */
#define RACK_MAX_MEMBERS 16
/* Data of the cluster's etcd on a host. */
enum rack_etcd_data { RACK_DATA_UNKNOWN /* not asked */, RACK_DATA_NONE, RACK_DATA_THERE };
struct rack_member {
	uint64_t id;
	char name[RACK_NAME_MAX + 1]; /* "": it has not started yet. */
	char peer_url[300];
	bool learner; /* without a vote */
};
struct rack_members {
	struct rack_member list[RACK_MAX_MEMBERS];
	size_t n;
};
/* Members that leave, join, and get a vote. They leave and join in turns, one at a time, so that most of them run at any time. */
struct rack_moves {
	const struct rack_member *leave[RACK_MAX_MEMBERS], *promote[RACK_MAX_MEMBERS];
	const struct rack_host *join[RACK_MAX_HOSTS]; /* Older data of these hosts is not valid any more. */
	size_t n_leave, n_promote, n_join;
};
/* Compare the members with the hosts that have the role etcd. |data|: by host of |r|. A member leaves if no host has its name and peer
 * URL, or if that host has no data. A host without a member joins. A member without a vote gets one. |out| borrows from |r| and |m|.
 * CONFLICT: no member would stay, so that this is another etcd. */
CGN_RC rack_moves_find(const struct rack *r, const enum rack_etcd_data *data, const struct rack_members *m,
	struct rack_moves *out, struct cgn_err *err);
static inline bool rack_moves_are_none(const struct rack_moves *m)
{
	return m->n_leave + m->n_join + m->n_promote == 0;
}
/* Append the peer URL of a host, "https://10.0.0.11:2380". */
void rack_peer_url(const struct rack_host *h, struct cgn_buf *out);
/* Append ETCD_INITIAL_CLUSTER of a host that is a member of |m| and has not started yet. */
void rack_join_cluster(const struct rack_members *m, const struct rack_host *h, struct cgn_buf *out);

/* ---- changes.c ---- */
/* Return the roles whose programs read a section of cognitora.toml, such as "router". */
unsigned rack_readers(struct cgn_str section);
/* Return the roles whose programs read a setting in which two texts of cognitora.toml differ. */
unsigned rack_changed(struct cgn_str old, struct cgn_str now);
/* Do two texts of etcd.env differ in more than what a member reads only before it has data? */
bool rack_etcd_changed(struct cgn_str old, struct cgn_str now);

/* ---- report.c: what deploy/rack/state.sh says of a host ---- */
#define RACK_MAX_SEEN   512 /* Files of one host. */
#define RACK_MAX_DATA   8   /* Folders with data of etcd; further ones are not noted. */
#define RACK_REPORT_MAX ((size_t)64 << 20)
struct rack_seen {
	bool systemd, etcd, interrupted;         /* |interrupted|: an installation was begun and not ended. */
	struct cgn_str etcd_data[RACK_MAX_DATA]; /* Clusters of which the host has data of etcd. */
	size_t n_etcd_data;
	unsigned pending, enabled, active; /* Roles. */
	struct rack_seen_file {
		struct cgn_str path, sha256, text; /* |text|.p is NULL where it was not sent. */
	} files[RACK_MAX_SEEN];
	size_t n;
};
/* Read a report, from which |out| borrows. CGN_INVALID: it is none, or is not complete. */
CGN_RC rack_report_read(struct cgn_str report, struct rack_seen *out, struct cgn_err *err);
const struct rack_seen_file *rack_seen_find(const struct rack_seen *s, const char *path); /* NULL: absent. */
