/* SPDX-License-Identifier: Apache-2.0 */
/* reply, inside: answers that the router makes itself. */
#pragma once
#include "router/answer/answer/reply.h"

/* Call |put| for each name that a request may use now: models with a ready node, and their aliases. */
typedef void (*gw_name_fn)(void *arg, struct cgn_str name, bool is_alias);
void gw_reply_names(const struct gw_req *r, gw_name_fn put, void *arg);
/* Refuse an empty list while the membership was not heard: a client would take it for a cluster without models. True: refused. */
bool gw_reply_unheard(struct gw_req *r);

/* Return the cluster's model with that name or alias; NULL: there is none. */
const struct view_model *gw_reply_model(const struct gw_req *r, struct cgn_str name);
/* Return the Unix time that lists show for it. */
uint64_t gw_reply_created(const struct gw_req *r, const struct view_model *m);

enum gw_step gw_reply_summary(struct gw_req *r); /* summary.c */
enum gw_step gw_reply_index(struct gw_req *r);   /* index.c */
