/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log/log.h"
#include "base/pb/pb.h"
#include "router/control/control/watch.h"

static void watch_tell(struct router_watch *w)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	Cognitora__V1__WatchRequest rq = COGNITORA__V1__WATCH_REQUEST__INIT;
	rq.wanted = w->r->wanted.doc;
	pb_pack(&rq, &b);
	const struct iovec iov = {b.p, b.n};
	if (b.bad)
		cgn_log_limited(ERROR, "router.wanted_not_told", F_STR("address", w->address),
			F_STR("why", "out of memory"));
	else
		grpc_send(w->call, &iov, 1);
}

void router_wanted_update(struct router *r, struct cgn_str text, const char *where)
{
	struct cgn_err err = {.code = CGN_FINE};
	Cognitora__V1__WantedModels *doc = NULL;
	cgn_rc rc = text.n > 0 ? wanted_read(text, &doc, &err) : CGN_OK;
	(void)cgn_str_copyz(r->wanted.trouble, sizeof r->wanted.trouble,
		cgn_str_of(cgn_ok(rc) ? "" : err.msg));
	if (!cgn_ok(rc)) {
		cgn_log(ERROR, "router.wanted_refused", F_STR("where", where), F_STR("why", err.msg),
			F_STR("then", "what was wanted before stays"));
		return;
	}
	if (doc == NULL) /* Removed by hand: agents keep their models. */
		return;
	pb_free(&r->wanted.doc);
	r->wanted.doc = doc;
	cgn_log(INFO, "router.wanted", F_U64("revision", doc->revision), F_U64("models", doc->n_models),
		F_STR("where", where));
	for (size_t i = 0; i < ROUTE_MAX_NODES; i++)
		if (r->members.watches[i] != NULL && r->members.watches[i]->call != NULL)
			watch_tell(r->members.watches[i]);
}
