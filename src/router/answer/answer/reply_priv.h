/* SPDX-License-Identifier: Apache-2.0 */
/* reply, inside: answers that the router makes itself. */
#pragma once
#include "router/answer/answer/reply.h"

/* ---- reply.c ---- */
/* Send |body| with |fields|, and note that the answer is over. */
void gw_reply_send(struct gw_req *r, int status, const struct http_field *fields, size_t n,
	struct cgn_str body);
/* Put the fields that all answers have into |f|, two at most, the type of JSON first. Returns their number. */
size_t gw_reply_fields(const struct gw_req *r, struct http_field *f);

/* ---- names.c ---- */
/* Call |put| for each name that a request may use now: models with a ready node, and their aliases. */
typedef void (*gw_name_fn)(void *arg, struct cgn_str name, bool is_alias);
void gw_reply_names(const struct gw_req *r, gw_name_fn put, void *arg);
/* Refuse an empty list while the membership was not heard: a client would take it for a cluster without models. True: refused. */
bool gw_reply_unheard(struct gw_req *r);

/* Does a node or a peer serve the model, or would a request wake a node that does? */
bool gw_reply_serves(const struct gw_req *r, struct cgn_str name);
/* Does a node serve any model, or would a request wake one that does? */
bool gw_reply_any_served(const struct cluster_view *v);
/* Return the cluster's model with that name or alias; NULL: there is none. */
const struct view_model *gw_reply_model(const struct gw_req *r, struct cgn_str name);
/* Return the Unix time that lists show for it. */
uint64_t gw_reply_created(const struct gw_req *r, const struct view_model *m);

/* ---- answers of their own ---- */
enum gw_step gw_reply_summary(struct gw_req *r); /* summary.c */
enum gw_step gw_reply_index(struct gw_req *r);   /* index.c */
