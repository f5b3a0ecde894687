/* SPDX-License-Identifier: Apache-2.0 */
/* report: the slot manager's part of the admin port's /engines. */
#include "joint/kv/slotmgr/slotmgr_priv.h"

static void put_slot(struct json_out *o, const struct slot_view *v)
{
	static const char *const uses[] =
		{[SLOT_IDLE] = "idle", [SLOT_BUSY] = "busy", [SLOT_MOVING] = "moving"};
	json_open(o, '{');
	json_key_z(o, "use", uses[v->use]);
	json_key_u64(o, "blocks", v->n);
	json_key_u64(o, "tokens", v->tokens);
	json_key_u64(o, "stored", v->saved);
	json_close(o, '}');
}

static void put_stats(struct json_out *o, const struct slotmgr *m)
{
	const struct slot_stats *s = &m->stats;
	json_key_u64(o, "states", slot_directory_states(m->entries.directory));
	json_key_u64(o, "state_blocks", slot_directory_blocks(m->entries.directory));
	json_key_u64(o, "saves", s->saves);
	json_key_u64(o, "save_failures", s->save_failures);
	json_key_u64(o, "restores", s->restores);
	json_key_u64(o, "restore_failures", s->restore_failures);
	json_key_u64(o, "restored_tokens", s->restored_tokens);
	json_key_f64(o, "spared_ms", s->spared_ms);
	json_key_open(o, "prompts", '{');
	for (enum restore_outcome i = 0; i < RESTORE_OUTCOMES; i++)
		json_key_u64(o, restore_outcome_text(i), s->outcomes[i]);
	json_close(o, '}');
}

void slotmgr_report(const struct slotmgr *m, struct json_out *o)
{
	if (m == NULL) {
		json_put_null(o);
		return;
	}
	json_open(o, '{');
	json_key_bool(o, "at_work", m->slots != NULL);
	json_key_z(o, "trouble", m->trouble);
	json_key_z(o, "build", m->fingerprint.build);
	put_stats(o, m);
	json_key_bool(o, "paused", slotmgr_is_paused(m));
	json_key_u64(o, "strays", m->stats.strays);
	json_key_f64(o, "prefill_ms_per_token", m->pace.prefill_ms);
	json_key_f64(o, "bytes_per_token", m->pace.token_bytes);
	json_key_f64(o, "save_ms_per_mib", m->pace.save_ms);
	json_key_f64(o, "load_ms_per_mib", m->pace.load_ms);
	json_key_open(o, "slots", '[');
	for (uint32_t i = 0; m->slots != NULL && i < slots_count(m->slots); i++) {
		struct slot_view v = slots_at(m->slots, i);
		put_slot(o, &v);
	}
	json_close(o, ']');
	json_close(o, '}');
}
