/* SPDX-License-Identifier: Apache-2.0 */
/* files_documents: changes of the documents in cluster.state_dir. One write of a document is under way at a time; others
 * wait for its end, and are refused if they were computed from what it replaced. */
#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/state/files_priv.h"

/* Log that a document's file is empty or cannot be read. Return false in the second case. */
static bool read_judge(const char *file, enum state_document d, cgn_rc rc, const struct cgn_err *why,
	size_t n)
{
	if (cgn_ok(rc) && n == 0) /* The router removes the file of a document that ends. */
		cgn_log(WARN, "state.document_empty", F_STR("of", state_document_title(d)),
			F_STR("file", file),
			F_STR("then", "it counts as none; set it again if the file was emptied"));
	if (cgn_ok(rc) || rc.code == CGN_NOT_FOUND)
		return true;
	cgn_log(ERROR, "state.document_unreadable", F_STR("of", state_document_title(d)),
		F_STR("why", why->msg),
		F_STR("then", "it counts as before; at the start, as if there were none"));
	return false;
}

bool state_document_read(const char *file, enum state_document d, struct cgn_buf *out)
{
	struct cgn_err why;
	cgn_rc rc = disk_read_file(file, state_document_most(d), out, &why);
	return read_judge(file, d, rc, &why, out->n);
}

static void document_next(struct state_files *f, enum state_document d);

static void document_written(void *user, const struct statefile_result *r)
{
	struct document_file *own = user;
	struct state_request *rq = own->rq;
	struct state_watch *s = own->f->s;
	enum state_document d = rq->document;
	own->rq = NULL;
	if (r->err.code == CGN_FINE) {
		state_document_seen(s, d, r->text);
	} else {
		rq->err = r->err;
		if (rq->on)
			state_files_failed(rq, &r->err);
		if (read_judge(s->documents[d].where, d, r->read, &r->why, r->present.n))
			state_document_seen(s, d, cgn_buf_view(&r->present));
	}
	state_request_ready(s, rq);
	document_next(own->f, d);
}

static void write_begin(struct state_files *f, struct state_request *rq)
{
	struct document_file *own = &f->documents[rq->document];
	struct cgn_buf text = {.p = rq->text, .n = rq->text_bytes, .cap = rq->text_bytes};
	rq->text = NULL;
	own->rq = rq;
	statefile_change(own->file,
		&(struct statefile_change){.text = text,
			.remove = !rq->on,
			.mode = rq->document == STATE_INVITES ? 0600 : 0644,
			.limit = state_document_most(rq->document),
			.done = document_written,
			.user = own});
}

/* Return true if the change is over without a write. */
static bool change_is_over(const struct state_text *t, struct state_request *rq)
{
	struct cgn_str text = {rq->text, rq->text_bytes};
	if (rq->base == t->version)
		return false;
	if (!cgn_str_eq(text, cgn_buf_view(&t->text)))
		(void)CGN_FAIL_AS(&rq->err, CGN_CONFLICT,
			"another change of %s was stored meanwhile, so this one was not: repeat it",
			state_document_title(rq->document));
	return true;
}

/* Begin the first change of |d| that waits, unless a write is under way: its end leads here again. */
static void document_next(struct state_files *f, enum state_document d)
{
	cgn_list_each (it, &f->s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (f->documents[d].rq != NULL)
			return;
		if (rq->id[0] != '\0' || rq->document != d || rq->ready)
			continue;
		if (change_is_over(&f->s->documents[d], rq))
			state_request_ready(f->s, rq);
		else
			write_begin(f, rq);
	}
}

void state_files_put(struct state_files *f, struct state_watch *s, struct state_request *rq)
{
	struct cgn_err err;
	rq->err = (struct cgn_err){.code = CGN_FINE};
	if (state_files_hold(f, s, &err)) {
		document_next(f, rq->document);
		return;
	}
	rq->err = err;
	state_request_ready(s, rq);
}
