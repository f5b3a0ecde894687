/* SPDX-License-Identifier: Apache-2.0 */
/* template: compile, and render within bounds. */
#include "template_priv.h"
#include "text_priv.h"

#include <stdlib.h>

#define COMPILED_MAX   ((size_t)1 << 28)
#define DEFAULT_OUTPUT ((size_t)64 << 20)
#define DEFAULT_STEPS  20000000
#define DEFAULT_MEMORY ((size_t)256 << 20)

/* ---- compile ---- */
/* Convert line ends to "\n" and drop one at the very end, as Jinja does. */
static bool take_source(struct template *t, struct cgn_str source)
{
	char *to = cgn_arena_get(&t->arena, source.n + 1);
	size_t n = 0;
	if (to == NULL)
		return false;
	for (size_t i = 0; i < source.n; i++) {
		bool cr = source.p[i] == '\r';
		to[n++] = cr ? '\n' : source.p[i];
		i += cr && i + 1 < source.n && source.p[i + 1] == '\n';
	}
	if (n > 0 && to[n - 1] == '\n')
		n--;
	t->source = (struct cgn_str){to, n};
	return true;
}

cgn_rc template_compile(struct cgn_str source, struct template **out, struct cgn_err *err)
{
	if (source.n > TEMPLATE_MAX_SOURCE)
		return CGN_FAIL(err, INVALID, "the chat template has %zu bytes; the limit is %zu", source.n,
			TEMPLATE_MAX_SOURCE);
	size_t good = cgn_utf8_prefix(source.p, source.n);
	if (good < source.n)
		return CGN_FAIL(err, INVALID, "the chat template is not UTF-8 at byte %zu", good);
	struct template *t = CGN_NEW(struct template);
	t->tag = TEMPLATE_TAG;
	cgn_arena_init(&t->arena, COMPILED_MAX);
	cgn_rc rc = take_source(t, source)
		? parse_source(t, err)
		: CGN_FAIL(err, NO_MEMORY, "no memory to compile the chat template");
	if (cgn_ok(rc))
		*out = t;
	else
		template_free(&t);
	return rc;
}

void template_free(struct template **take)
{
	struct template *t = *take;
	if (t == NULL)
		return;
	CGN_LIVE(t, TEMPLATE_TAG);
	*take = NULL;
	cgn_arena_fini(&t->arena);
	t->tag = 0;
	free(t);
}

/* ---- variables ---- */
static void set_name(struct vm *vm, struct cgn_str name, struct value v)
{
	for (size_t i = 0; i < vm->t->n_names; i++)
		if (cgn_str_eq(vm->t->names[i], name))
			vm->globals[i] = v;
}

static bool set_json(struct vm *vm, const char *name, struct json_val j)
{
	struct value v = v_none();
	if (j.raw.p != NULL && !value_of_json(vm, j, &v))
		return false;
	set_name(vm, cgn_str_of(name), v);
	return true;
}

static bool set_kwargs(struct vm *vm, struct json_val kwargs)
{
	struct value v;
	if (kwargs.raw.p == NULL || kwargs.type == JSON_NULL)
		return true;
	if (kwargs.type != JSON_OBJECT)
		return vm_fail(vm, CGN_INVALID, "chat_template_kwargs is not an object");
	if (!value_of_json(vm, kwargs, &v) || !value_list(vm, v))
		return false;
	for (size_t i = 0; i < v.dict->n; i++)
		set_name(vm, v.dict->e[i].key, v.dict->e[i].v);
	return true;
}

static bool set_variables(struct vm *vm)
{
	const struct template_ask *ask = vm->ask;
	const struct {
		const char *name;
		struct cgn_str s;
	} tokens[] = {{"bos_token", ask->bos_token}, {"eos_token", ask->eos_token},
		{"unk_token", ask->unk_token}, {"pad_token", ask->pad_token}};
	vm->globals = vm_get(vm, vm->t->n_names * sizeof *vm->globals);
	if (vm->globals == NULL)
		return false;
	for (size_t i = 0; i < vm->t->n_names; i++) {
		int id = global_id(vm->t->names[i]);
		vm->globals[i] = id >= 0 ? global_value(id) : v_undefined();
	}
	for (size_t i = 0; i < CGN_COUNT(tokens); i++)
		if (tokens[i].s.n > 0)
			set_name(vm, cgn_str_of(tokens[i].name), v_str(tokens[i].s));
	set_name(vm, CGN_STR("add_generation_prompt"), v_bool(ask->add_generation_prompt));
	return set_json(vm, "messages", ask->messages) && set_json(vm, "tools", ask->tools) &&
		set_json(vm, "documents", ask->documents) && set_kwargs(vm, ask->kwargs);
}

/* ---- continue_final_message ---- */
static bool last_text(struct json_val messages, struct cgn_arena *a, struct cgn_str *out)
{
	struct json_val m, content, last = {JSON_NULL, {NULL, 0}}, text;
	struct json_iter it = json_iter_of(messages);
	while (json_next_elem(&it, &m))
		last = m;
	if (last.raw.p == NULL || !json_get(last, "content", &content))
		return false;
	if (content.type == JSON_ARRAY) { /* Use the last part that has a text. */
		it = json_iter_of(content);
		content.type = JSON_NULL;
		while (json_next_elem(&it, &m))
			if (json_get(m, "text", &text))
				content = text;
	}
	if (content.type != JSON_STRING)
		return false;
	*out = json_str(content, a);
	return out->p != NULL;
}

static size_t last_place(struct cgn_str s, struct cgn_str what)
{
	for (size_t at = s.n >= what.n ? s.n - what.n + 1 : 0; at > 0; at--)
		if (what.n == 0 || memcmp(s.p + at - 1, what.p, what.n) == 0)
			return at - 1;
	return SIZE_MAX;
}

/* End the text where the last message's content ends; trailing white space stays only where the template kept
 * it. */
static bool cut_final(struct vm *vm)
{
	struct cgn_str text, made = {vm->out->p + vm->out_base, vm->out->n - vm->out_base};
	if (!last_text(vm->ask->messages, &vm->mem, &text))
		return vm_fail(vm, CGN_INVALID, "continue_final_message: the last message has no text");
	struct cgn_str bare = text_strip(text, NULL, true, true), left = text_strip(text, NULL, true, false);
	size_t at = last_place(made, bare);
	if (at == SIZE_MAX)
		return vm_fail(vm, CGN_INVALID,
			"continue_final_message: the chat template does not show the last message");
	bool kept = made.n - at >= left.n && (left.n == 0 || memcmp(made.p + at, left.p, left.n) == 0);
	vm->out->n = vm->out_base + at + (kept ? left.n : bare.n);
	return true;
}

static bool vm_render(struct vm *vm)
{
	if (cgn_buf_room(vm->out, 1) == NULL) /* Also ensures that its bytes have an address from here on. */
		return vm_emit(vm, CGN_STR(" "));
	if (vm->ask->messages.raw.p == NULL || vm->ask->messages.type != JSON_ARRAY)
		return vm_fail(vm, CGN_INVALID, "messages is not an array");
	if (vm->ask->continue_final_message && vm->ask->add_generation_prompt)
		return vm_fail(vm, CGN_INVALID,
			"continue_final_message and add_generation_prompt exclude each other");
	return set_variables(vm) && exec_body(vm, vm->t->body) &&
		(!vm->ask->continue_final_message || cut_final(vm));
}

cgn_rc template_render(const struct template *t, const struct template_ask *ask, struct cgn_buf *out,
	struct cgn_err *err)
{
	CGN_LIVE(t, TEMPLATE_TAG);
	struct vm *vm = CGN_NEW(struct vm);
	bool was_bad = out->bad;
	*vm = (struct vm){.t = t, .ask = ask, .out = out, .out_base = out->n, .err = err, .rc = CGN_OK};
	vm->out_max = ask->max_output != 0 ? ask->max_output : DEFAULT_OUTPUT;
	vm->steps_left = ask->max_steps != 0 ? ask->max_steps : DEFAULT_STEPS;
	cgn_arena_init(&vm->mem, ask->max_memory != 0 ? ask->max_memory : DEFAULT_MEMORY);
	if (!vm_render(vm)) {
		out->n = vm->out_base;
		out->bad = was_bad;
	}
	cgn_rc rc = vm->rc;
	cgn_arena_fini(&vm->mem);
	free(vm);
	return rc;
}
