/* SPDX-License-Identifier: Apache-2.0 */
/* files_documents: changes of the documents in cluster.state_dir. One write of a document is under way at a time; others
 * wait for its end, and are refused if they were computed from what it replaced. */
#include <stdlib.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "joint/cluster/state/state_priv.h"

/* A change on the thread pool. */
struct document_write {
	struct state_files *f; /* NULL: the backend was closed meanwhile, and |rq| is gone. */
	struct state_watch *s;
	struct state_request *rq;
	enum state_document document;
	bool on;          /* Write |text|, else remove the file. */
	char *text;       /* owned; NULL: none */
	char *dir, *file; /* owned */
	size_t text_bytes;
	int place; /* Holds the place until the write is over; -1: not held. */
	cgn_rc rc;
	struct cgn_err err;
	bool found; /* The write failed, and |present| is what the disk has. */
	struct cgn_buf present;
};

bool state_document_read(const char *file, enum state_document d, struct cgn_buf *out)
{
	struct cgn_err why;
	cgn_rc rc = disk_read_file(file, state_document_most(d), out, &why);
	if (cgn_ok(rc) && out->n == 0) /* The router removes the file of a document that ends. */
		cgn_log(WARN, "state.document_empty", F_STR("of", state_document_title(d)),
			F_STR("file", file),
			F_STR("then", "it counts as none; set it again if the file was emptied"));
	if (cgn_ok(rc) || rc.code == CGN_NOT_FOUND)
		return true;
	cgn_log(ERROR, "state.document_unreadable", F_STR("of", state_document_title(d)),
		F_STR("why", why.msg),
		F_STR("then", "it counts as before; at the start, as if there were none"));
	return false;
}

static void write_free(struct document_write *w)
{
	if (w == NULL)
		return;
	state_place_drop(w->place);
	cgn_buf_fini(&w->present);
	free(w->text);
	free(w->dir);
	free(w->file);
	free(w);
}

/* A write that fails may have replaced the file already: the sync of its folder comes last. */
static void write_run(void *arg)
{
	struct document_write *w = arg;
	mode_t mode = w->document == STATE_INVITES ? 0600 : 0644;
	w->rc = w->on
		? state_file_write(w->dir, w->file, (struct cgn_str){w->text, w->text_bytes}, mode, &w->err)
		: disk_remove_file(w->file, &w->err);
	if (!cgn_ok(w->rc))
		w->found = state_document_read(w->file, w->document, &w->present);
}

static void document_next(struct state_files *f, struct state_watch *s, enum state_document d);

static void write_done(void *arg)
{
	struct document_write *w = arg;
	struct state_files *f = w->f;
	struct state_watch *s = w->s;
	enum state_document d = w->document;
	if (f != NULL) {
		f->documents[d] = NULL;
		w->rq->err = w->err;
		if (cgn_ok(w->rc))
			state_document_seen(s, d, (struct cgn_str){w->text, w->text_bytes});
		else if (w->found)
			state_document_seen(s, d, cgn_buf_view(&w->present));
		state_request_ready(s, w->rq);
	}
	write_free(w);
	if (f != NULL)
		document_next(f, s, d);
}

static struct document_write *write_new(struct state_files *f, struct state_watch *s,
	struct state_request *rq)
{
	struct document_write *w = CGN_NEW(struct document_write);
	*w = (struct document_write){.f = f,
		.s = s,
		.rq = rq,
		.document = rq->document,
		.on = rq->on,
		.dir = cgn_str_dupz(cgn_str_of(f->dir)),
		.file = cgn_str_dupz(cgn_str_of(s->documents[rq->document].where)),
		.place = state_place_share(&s->place),
		.err = {.code = CGN_FINE}};
	if (w->dir != NULL && w->file != NULL)
		return w;
	write_free(w);
	return NULL;
}

static void write_begin(struct state_files *f, struct state_watch *s, struct state_request *rq)
{
	struct document_write *w = write_new(f, s, rq);
	if (w == NULL) {
		(void)CGN_FAIL(&rq->err, NO_MEMORY, "no memory for %s", state_document_title(rq->document));
		state_request_ready(s, rq);
		return;
	}
	w->text = rq->text;
	w->text_bytes = rq->text_bytes;
	rq->text = NULL;
	f->documents[rq->document] = w;
	if (cgn_ok(cgn_loop_write(s->loop, write_run, write_done, w)))
		return;
	write_run(w);
	write_done(w);
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
static void document_next(struct state_files *f, struct state_watch *s, enum state_document d)
{
	cgn_list_each (it, &s->requests) {
		struct state_request *rq = CGN_CONTAINER(it, struct state_request, link);
		if (f->documents[d] != NULL)
			return;
		if (rq->id[0] != '\0' || rq->document != d || rq->ready)
			continue;
		if (change_is_over(&s->documents[d], rq))
			state_request_ready(s, rq);
		else
			write_begin(f, s, rq);
	}
}

void state_files_put(struct state_files *f, struct state_watch *s, struct state_request *rq)
{
	struct cgn_err err;
	rq->err = (struct cgn_err){.code = CGN_FINE};
	if (state_files_hold(f, s, &err)) {
		document_next(f, s, rq->document);
		return;
	}
	rq->err = err;
	state_request_ready(s, rq);
}

void state_document_writes_leave(struct state_files *f)
{
	for (size_t d = 0; d < STATE_DOCUMENTS; d++)
		if (f->documents[d] != NULL)
			f->documents[d]->f = NULL;
}
