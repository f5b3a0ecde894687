/* SPDX-License-Identifier: Apache-2.0 */
/* open: makes a slot manager from the settings of its engine, and frees it. */
#include <stdlib.h>
#include <unistd.h>

#include "io/os/disk/disk.h"
#include "joint/kv/slotmgr/slotmgr_priv.h"

/* The fingerprint covers the engine's command line, which outlives the configuration. */
static CGN_RC copy_launch_options(struct slotmgr *m, const struct config_engine *ce, struct cgn_err *err)
{
	struct slot_fingerprint *f = &m->fingerprint;
	bool ok = true;
	cgn_arena_init(&f->arena, (size_t)1024 * 1024);
	f->managed = ce->managed;
	(void)cgn_str_copyz(f->kv_tag, sizeof f->kv_tag, cgn_str_of(ce->kv_tag != NULL ? ce->kv_tag : ""));
	f->n_extra_args = ce->managed ? ce->extra_args.n : 0;
	f->extra_args = cgn_arena_get(&f->arena, (f->n_extra_args + 1) * sizeof *f->extra_args);
	ok = f->extra_args != NULL;
	for (size_t i = 0; ok && i < f->n_extra_args; i++) {
		f->extra_args[i] = cgn_arena_strz(&f->arena, cgn_str_of(ce->extra_args.v[i]));
		ok = f->extra_args[i] != NULL;
	}
	if (ok && ce->model_path != NULL) {
		f->model_path = cgn_arena_strz(&f->arena, cgn_str_of(ce->model_path));
		ok = f->model_path != NULL;
	}
	return ok ? CGN_OK : CGN_FAIL(err, NO_MEMORY, "no memory for the slots of engine %s", m->name);
}

static CGN_RC open_folder(struct slotmgr *m, const struct config_engine *ce, struct cgn_err *err)
{
	if (!cgn_str_copyz(m->folder.path, sizeof m->folder.path, cgn_str_of(ce->slot_dir)))
		return CGN_FAIL(err, INVALID, "engine.slot_dir %.200s...: longer than %zu bytes",
			ce->slot_dir, sizeof m->folder.path - 1);
	if (ce->managed)
		CGN_TRY(disk_mkdirs(m->folder.path, 0750, err));
	/* An engine that is not managed may have its folder created later. */
	if (ce->managed || access(m->folder.path, F_OK) == 0)
		CGN_TRY(slot_folder_take(m, err));
	return CGN_OK;
}

CGN_RC slotmgr_open(const struct slotmgr_cfg *cfg, struct slotmgr **out, struct cgn_err *err)
{
	const struct config_engine *ce = cfg->engine;
	if (ce->kind != ENGINE_LLAMA_CPP || ce->slot_dir == NULL)
		return CGN_OK;
	struct slotmgr *m = CGN_NEW(struct slotmgr);
	*m = (struct slotmgr){.tag = SLOTMGR_TAG,
		.loop = cfg->loop,
		.telemetry = cfg->telemetry,
		.name = cfg->name,
		.endpoint = cfg->endpoint,
		.holdings = cfg->holdings,
		.ops = cfg->ops,
		.user = cfg->user,
		.min_tokens = ce->kv_save_min_tokens,
		.idle_timeout = ce->kv_save_idle,
		.restore_timeout = ce->kv_restore_timeout,
		.folder = {.lock = -1}};
	*out = m;
	struct cgn_link *const lists[] = {&m->waiting, &m->preparing, &m->saves, &m->restores,
		&m->entries.fetches, &m->folder.files};
	for (size_t i = 0; i < CGN_COUNT(lists); i++)
		cgn_list_init(lists[i]);
	cgn_timer_init(&m->idle_timer, m->loop, slotmgr_on_idle);
	cgn_timer_init(&m->pause_timer, m->loop, slotmgr_on_pause);
	slotmgr_get_metrics(m);
	CGN_TRY(copy_launch_options(m, ce, err));
	CGN_TRY(open_folder(m, ce, err));
	slot_entries_open(m);
	return CGN_OK;
}

void slotmgr_close(struct slotmgr **take)
{
	struct slotmgr *m = CGN_TAKE_LIVE(take, SLOTMGR_TAG);
	if (m == NULL)
		return;
	slotmgr_engine_ready(m, false);
	slot_entries_close(m);
	cgn_timer_cancel(&m->idle_timer);
	slot_folder_leave(m);
	free(m->idle_since);
	free(m->tenants);
	free(m->task);
	cgn_buf_fini(&m->fingerprint.adapters);
	cgn_arena_fini(&m->fingerprint.arena);
	m->tag = 0;
	free(m);
}
