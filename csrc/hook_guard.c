/* Whether the hooks of the modules that a compiled frame calls are as they were.
 *
 * One HookGuard stands for all modules of one compiled frame. It knows them by path from
 * a root module, never by identity, and remembers for each root the dicts it found on
 * these paths. Called by torch/_dynamo/nn_module_hooks/guards.py, which has the same in
 * Python for where this is not built. Uses the C API of CPython alone.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030C0000
#define HAS_VERSION_TAGS 1
#else
#define HAS_VERSION_TAGS 0
#endif

#ifdef Py_GIL_DISABLED
#error "borrowed references need the GIL: use the guard in Python"
#endif

enum { FORWARD_PRE, FORWARD, BACKWARD_PRE, BACKWARD, N_KINDS };
enum { N_MARKS = 3 };

static const char *const HOOKS[N_KINDS] = {
    "_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"};
static const char *const MARKS[N_MARKS] = {
    "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called"};
static const char *const CALLED[N_KINDS] = {
    "forward pre-hook", "forward hook", "backward pre-hook", "backward hook"};

static PyObject *hooks_names[N_KINDS];
static PyObject *marks_names[N_MARKS];
static PyObject *modules_name;
static PyTypeObject *ordered_dict;

/* A module on some path. */
typedef struct {
    Py_ssize_t parent; /* index of the module above, -1 for the root */
    PyObject *key;     /* its name there */
    PyObject *name;    /* what to call it in a report */
    bool has_children;
    bool is_called;    /* whether its hooks count */
    bool is_hooked;
    bool is_plain;     /* whether no hook is marked, and all come in dict order */
    Py_ssize_t sizes[N_KINDS];
    PyObject *check; /* check(module) tells of order and marks */
} Node;

/* What was found at a node from one root. All references are borrowed: each is valid
 * while the dict that holds it, reached by way of the nodes above, is unchanged. */
typedef struct {
    PyObject *module;
    PyObject *dict;
    PyObject *modules;
    PyObject *hooks[N_KINDS];
    PyObject *marks[N_MARKS];
#if HAS_VERSION_TAGS
    uint64_t tag;
    uint64_t modules_tag;
    uint64_t found_tag; /* the modules_tag above when the module was found there */
#endif
} Entry;

struct Root;

typedef struct {
    PyObject_HEAD
    struct Root *root; /* NULL once the guard is gone */
    PyObject *reference;
    void *address;
#if !HAS_VERSION_TAGS
    uint64_t seen;
#endif
    Py_ssize_t n;
    Entry *entries;
} Memo;

typedef struct Root {
    PyObject *getter; /* name of a local variable, or a function of the locals */
    PyObject *memos;  /* by address */
    Memo *last;       /* borrowed from memos */
    Py_ssize_t n;
    Py_ssize_t n_hooked;
    Node *nodes;
} Root;

typedef struct {
    PyObject_HEAD
    PyObject *report;
    PyObject *any_global_mark;
    Py_ssize_t n_roots;
    Root **roots;
} HookGuard;

/* ---- Noticing changes -------------------------------------------------------- */

#if HAS_VERSION_TAGS

static uint64_t
tag_of(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag;
}

#else

/* Grows whenever a dict that some memo relies on may have changed. */
static uint64_t changes = 1;
static int module_watcher = -1;
static int hooks_watcher = -1;

/* CPython 3.13.0 does not tell of attributes that bytecode stores in place
 * (https://github.com/python/cpython/issues/125608). */
static bool
misses_changes(void)
{
    return Py_Version >= 0x030D0000 && Py_Version < 0x030D01A0;
}

static bool
is_name(PyObject *key, PyObject *name)
{
    return key == name ||
           (!PyUnicode_CHECK_INTERNED(key) && PyUnicode_Compare(key, name) == 0);
}

static bool
counts(PyObject *key)
{
    if (key == NULL || !PyUnicode_CheckExact(key)) {
        return true;
    }
    for (int i = 0; i < N_KINDS; i++) {
        if (is_name(key, hooks_names[i])) {
            return true;
        }
    }
    for (int i = 0; i < N_MARKS; i++) {
        if (is_name(key, marks_names[i])) {
            return true;
        }
    }
    return is_name(key, modules_name);
}

static int
module_changes(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    bool is_item = event == PyDict_EVENT_ADDED || event == PyDict_EVENT_MODIFIED ||
                   event == PyDict_EVENT_DELETED;
    if (!is_item || counts(key)) {
        changes++;
    }
    return 0;
}

static int
hooks_change(PyDict_WatchEvent event, PyObject *dict, PyObject *key, PyObject *value)
{
    changes++;
    return 0;
}

static int
watch(Entry *entry)
{
    if (PyDict_Watch(module_watcher, entry->dict) < 0 ||
        (entry->modules != NULL && PyDict_Watch(hooks_watcher, entry->modules) < 0)) {
        return -1;
    }
    for (int i = 0; i < N_KINDS; i++) {
        if (entry->hooks[i] != NULL && PyDict_Watch(hooks_watcher, entry->hooks[i]) < 0) {
            return -1;
        }
    }
    for (int i = 0; i < N_MARKS; i++) {
        if (entry->marks[i] != NULL && PyDict_Watch(hooks_watcher, entry->marks[i]) < 0) {
            return -1;
        }
    }
    return 0;
}

#endif

/* ---- Memos ------------------------------------------------------------------- */

static void
Memo_forget(Memo *memo)
{
    memo->root = NULL;
    Py_CLEAR(memo->reference);
}

/* Called when the root module is gone. */
static PyObject *
Memo_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Memo *memo = (Memo *)self;
    Root *root = memo->root;
    if (root != NULL) {
        Py_INCREF(memo);
        if (root->last == memo) {
            root->last = NULL;
        }
        PyObject *key = PyLong_FromVoidPtr(memo->address);
        if (key == NULL || PyDict_DelItem(root->memos, key) < 0) {
            PyErr_Clear();
        }
        Py_XDECREF(key);
        Memo_forget(memo);
        Py_DECREF(memo);
    }
    Py_RETURN_NONE;
}

static void
Memo_dealloc(PyObject *self)
{
    Memo *memo = (Memo *)self;
    PyTypeObject *type = Py_TYPE(self);
    Py_CLEAR(memo->reference);
    PyMem_Free(memo->entries);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot Memo_slots[] = {
    {Py_tp_call, Memo_call},
    {Py_tp_dealloc, Memo_dealloc},
    {0, NULL},
};

static PyType_Spec Memo_spec = {
    .name = "torch._dynamo.nn_module_hooks._hook_guard.Memo",
    .basicsize = sizeof(Memo),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = Memo_slots,
};

static PyTypeObject *memo_type;

static bool
Memo_is_of(Memo *memo, PyObject *module)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *alive = NULL;
    if (PyWeakref_GetRef(memo->reference, &alive) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(alive);
    return alive == module;
#else
    return PyWeakref_GET_OBJECT(memo->reference) == module;
#endif
}

static Memo *
Memo_new(Root *root, PyObject *module)
{
    Memo *memo = PyObject_New(Memo, memo_type);
    if (memo == NULL) {
        return NULL;
    }
    memo->root = root;
    memo->reference = NULL;
    memo->address = module;
#if !HAS_VERSION_TAGS
    memo->seen = 0;
#endif
    memo->n = root->n;
    memo->entries = PyMem_Calloc(root->n, sizeof(Entry));
    if (memo->entries == NULL) {
        Py_DECREF(memo);
        PyErr_NoMemory();
        return NULL;
    }
    return memo;
}

/* The memo of a root module, a new reference. */
static Memo *
Root_memo(Root *root, PyObject *module)
{
    Memo *memo = root->last;
    if (memo != NULL && memo->address == module && memo->n == root->n &&
        Memo_is_of(memo, module)) {
        return (Memo *)Py_NewRef(memo);
    }
    PyObject *key = PyLong_FromVoidPtr(module);
    if (key == NULL) {
        return NULL;
    }
    memo = (Memo *)PyDict_GetItemWithError(root->memos, key);
    if (memo != NULL && memo->n == root->n && Memo_is_of(memo, module)) {
        root->last = memo;
        Py_DECREF(key);
        return (Memo *)Py_NewRef(memo);
    }
    if (memo != NULL) {
        Memo *old = (Memo *)Py_NewRef(memo);
        Memo_forget(old);
        Py_DECREF(old);
    }
    root->last = NULL;
    memo = PyErr_Occurred() ? NULL : Memo_new(root, module);
    if (memo != NULL) {
        memo->reference = PyWeakref_NewRef(module, (PyObject *)memo);
        if (memo->reference == NULL && PyErr_ExceptionMatches(PyExc_TypeError)) {
            /* It cannot be told when this object is gone: nothing is remembered. */
            PyErr_Clear();
        }
        else if (memo->reference == NULL ||
            PyDict_SetItem(root->memos, key, (PyObject *)memo) < 0) {
            Memo_forget(memo);
            Py_CLEAR(memo);
        }
        else {
            root->last = memo;
        }
    }
    Py_DECREF(key);
    return memo;
}

/* ---- Checking ---------------------------------------------------------------- */

static bool
is_iterated_as_dict(PyObject *hooks)
{
    return PyDict_CheckExact(hooks) || Py_IS_TYPE(hooks, ordered_dict);
}

/* Whether an OrderedDict hands out its keys in the order of the dict underneath.
 * OrderedDict.move_to_end leaves no trace there. Returns -1 on error. */
static int
is_in_dict_order(PyObject *hooks)
{
    if (PyDict_CheckExact(hooks) || PyDict_GET_SIZE(hooks) < 2) {
        return 1;
    }
    PyObject *iterator = PyObject_GetIter(hooks);
    if (iterator == NULL) {
        return -1;
    }
    Py_ssize_t position = 0;
    PyObject *key, *value, *called;
    int result = 1;
    while (result == 1 && PyDict_Next(hooks, &position, &key, &value)) {
        called = PyIter_Next(iterator);
        result = called == NULL ? (PyErr_Occurred() ? -1 : 0) : called == key;
        Py_XDECREF(called);
    }
    Py_DECREF(iterator);
    return result;
}

static bool
report(HookGuard *guard, Node *node, const char *format, const char *what)
{
    PyErr_Clear();
    PyObject *detail = PyUnicode_FromFormat(format, what);
    PyObject *text =
        detail == NULL ? NULL : PyUnicode_FromFormat("%U: %U", node->name, detail);
    Py_XDECREF(detail);
    /* The list may have been emptied by whoever was given it. */
    if (text == NULL || PyList_SetSlice(guard->report, 0, PY_SSIZE_T_MAX, NULL) < 0 ||
        PyList_Append(guard->report, text) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(text);
    return false;
}

/* Looks up the dicts of a module whose __dict__ may have changed. */
static bool
load(HookGuard *guard, Node *node, Entry *entry, PyObject *dict)
{
    for (int i = 0; i < N_KINDS && node->is_called; i++) {
        PyObject *hooks = PyDict_GetItemWithError(dict, hooks_names[i]);
        if (hooks == NULL) {
            return report(guard, node, "the module has no %s", HOOKS[i]);
        }
        if (!is_iterated_as_dict(hooks)) {
            return report(guard, node, "%s is of another type", HOOKS[i]);
        }
        entry->hooks[i] = hooks;
    }
    for (int i = 0; i < N_MARKS && node->is_hooked; i++) {
        PyObject *marks = PyDict_GetItemWithError(dict, marks_names[i]);
        if (marks == NULL || !PyDict_Check(marks)) {
            return report(guard, node, "the module has no %s", MARKS[i]);
        }
        entry->marks[i] = marks;
    }
    if (node->has_children) {
        PyObject *modules = PyDict_GetItemWithError(dict, modules_name);
        if (modules == NULL || !PyDict_Check(modules)) {
            return report(guard, node, "the module has no %s", "_modules");
        }
        entry->modules = modules;
    }
    entry->dict = dict;
    return true;
}

static bool
find_in_parent(HookGuard *guard, Root *root, Entry *entries, Py_ssize_t i)
{
    Node *node = &root->nodes[i];
    Entry *entry = &entries[i];
    PyObject *module = PyDict_GetItemWithError(entries[node->parent].modules, node->key);
    if (module == NULL) {
        return report(guard, node, "the module is %s", "gone");
    }
#if HAS_VERSION_TAGS
    entry->found_tag = entries[node->parent].modules_tag;
#endif
    entry->module = module;
    return true;
}

static PyObject *
dict_of(PyObject *module)
{
    PyObject **slot = _PyObject_GetDictPtr(module);
    return slot == NULL ? NULL : *slot;
}

static bool
check_sizes(HookGuard *guard, Node *node, Entry *entry)
{
    for (int i = 0; i < N_KINDS; i++) {
        Py_ssize_t size = PyDict_GET_SIZE(entry->hooks[i]);
        if (size != node->sizes[i]) {
            return report(
                guard, node, size > node->sizes[i] ? "%s added" : "%s removed", CALLED[i]);
        }
    }
    return true;
}

/* Whether order and marks of a module's hooks are as expected, as far as that can be told
 * without calling Python: 1 or -1, an error; 0 leaves it to the node's check. */
static int
is_plainly_hooked(Node *node, Entry *entry, bool any_global_mark)
{
    if (!node->is_plain || any_global_mark) {
        return 0;
    }
    for (int i = 0; i < N_MARKS; i++) {
        if (PyDict_GET_SIZE(entry->marks[i]) != 0) {
            return 0;
        }
    }
    for (int i = 0; i < N_KINDS; i++) {
        int in_order = is_in_dict_order(entry->hooks[i]);
        if (in_order != 1) {
            return in_order;
        }
    }
    return 1;
}

/* What a call looks at lies all over memory, and is seldom in the cache: the compiled
 * code has run since. Fetching it ahead hides most of that. */
enum { N_AHEAD = 8 };

static void
fetch_ahead(Entry *entry)
{
#if defined(__GNUC__)
    if (entry->module != NULL) {
        __builtin_prefetch((char *)entry->module - 2 * sizeof(PyObject *));
    }
#if HAS_VERSION_TAGS
    __builtin_prefetch(entry->dict);
    for (int i = 0; i < N_KINDS; i++) {
        __builtin_prefetch(entry->hooks[i]);
    }
    __builtin_prefetch(entry->modules);
#endif
#endif
}

/* No Python code runs in here: it could free what is borrowed. Modules whose hooks have
 * to be looked at by Python code are added to `unclear`, with the index of their node. */
static bool
walk(HookGuard *guard, Root *root, Memo *memo, bool any_global_mark, PyObject *unclear)
{
    Entry *entries = memo->entries;
    entries[0].module = memo->address;
#if !HAS_VERSION_TAGS
    bool is_unchanged = memo->seen == changes && !misses_changes();
    uint64_t now = changes;
#endif
    for (Py_ssize_t i = 0; i < root->n; i++) {
        Node *node = &root->nodes[i];
        Entry *entry = &entries[i];
        if (i + N_AHEAD < root->n) {
            fetch_ahead(&entries[i + N_AHEAD]);
        }
#if HAS_VERSION_TAGS
        if (i > 0 && entry->found_tag != entries[node->parent].modules_tag &&
            !find_in_parent(guard, root, entries, i)) {
            return false;
        }
        PyObject *dict = dict_of(entry->module);
        if (dict == NULL) {
            return report(guard, node, "it is no %s", "module any more");
        }
        if (tag_of(dict) != entry->tag) {
            entry->tag = 0;
            if (!load(guard, node, entry, dict)) {
                return false;
            }
            entry->tag = tag_of(dict);
        }
        if (node->has_children) {
            entry->modules_tag = tag_of(entry->modules);
        }
        if (node->is_called && !check_sizes(guard, node, entry)) {
            return false;
        }
#else
        if (!is_unchanged && i > 0 && !find_in_parent(guard, root, entries, i)) {
            return false;
        }
        PyObject *dict = dict_of(entry->module);
        if (!is_unchanged || dict != entry->dict) {
            if (dict == NULL) {
                return report(guard, node, "it is no %s", "module any more");
            }
            is_unchanged = false;
            /* What follows may fail, with this entry as it is now. */
            memo->seen = 0;
            if (!load(guard, node, entry, dict) || watch(entry) < 0 ||
                (node->is_called && !check_sizes(guard, node, entry))) {
                return false;
            }
        }
#endif
        if (node->is_hooked) {
            int plainly = is_plainly_hooked(node, entry, any_global_mark);
            if (plainly < 0) {
                return false;
            }
            if (plainly == 0) {
                PyObject *pair = Py_BuildValue("nO", i, entry->module);
                if (pair == NULL || PyList_Append(unclear, pair) < 0) {
                    Py_XDECREF(pair);
                    return false;
                }
                Py_DECREF(pair);
            }
        }
    }
#if !HAS_VERSION_TAGS
    memo->seen = now;
#endif
    return true;
}

static bool
check_in_python(HookGuard *guard, Root *root, PyObject *unclear)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(unclear); i++) {
        PyObject *pair = PyList_GET_ITEM(unclear, i);
        Node *node = &root->nodes[PyLong_AsSsize_t(PyTuple_GET_ITEM(pair, 0))];
        PyObject *result = PyObject_CallOneArg(node->check, PyTuple_GET_ITEM(pair, 1));
        int is_right = result == NULL ? -1 : PyObject_IsTrue(result);
        Py_XDECREF(result);
        if (is_right < 1) {
            return report(guard, node, "order or marks of hooks %s", "changed");
        }
    }
    return true;
}

static PyObject *
Root_module(Root *root, PyObject *locals)
{
    if (!PyUnicode_Check(root->getter)) {
        return PyObject_CallOneArg(root->getter, locals);
    }
    return PyObject_GetItem(locals, root->getter);
}

static bool
Root_check(HookGuard *guard, Root *root, PyObject *locals, bool any_global_mark)
{
    PyObject *module = Root_module(root, locals);
    if (module == NULL) {
        return report(guard, &root->nodes[0], "the module is %s", "gone");
    }
    Memo *memo = Root_memo(root, module);
    PyObject *unclear = memo == NULL ? NULL : PyList_New(0);
    bool result = unclear != NULL && walk(guard, root, memo, any_global_mark, unclear) &&
                  check_in_python(guard, root, unclear);
    Py_XDECREF(unclear);
    Py_XDECREF(memo);
    Py_DECREF(module);
    return result;
}

/* ---- The guard --------------------------------------------------------------- */

static PyObject *
HookGuard_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    HookGuard *guard = (HookGuard *)self;
    PyObject *locals;
    if (!PyArg_ParseTuple(args, "O:HookGuard", &locals)) {
        return NULL;
    }
    int any_global_mark = -1;
    Py_INCREF(guard);
    bool result = true;
    for (Py_ssize_t i = 0; result && i < guard->n_roots; i++) {
        Root *root = guard->roots[i];
        if (root->n_hooked > 0 && any_global_mark < 0) {
            PyObject *answer = PyObject_CallNoArgs(guard->any_global_mark);
            any_global_mark = answer == NULL ? 1 : PyObject_IsTrue(answer);
            Py_XDECREF(answer);
        }
        result = Root_check(guard, root, locals, any_global_mark > 0);
    }
    Py_DECREF(guard);
    /* A module that cannot be looked at is not the one that was compiled. */
    PyErr_Clear();
    return PyBool_FromLong(result);
}

static Node *
Root_add(Root *root, Py_ssize_t parent, PyObject *key, PyObject *name)
{
    Node *nodes = PyMem_Realloc(root->nodes, (root->n + 1) * sizeof(Node));
    if (nodes == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    root->nodes = nodes;
    Node *node = &nodes[root->n++];
    memset(node, 0, sizeof(Node));
    node->parent = parent;
    node->key = Py_XNewRef(key);
    node->name = Py_NewRef(name);
    if (parent >= 0) {
        nodes[parent].has_children = true;
    }
    return node;
}

static PyObject *
HookGuard_add_root(PyObject *self, PyObject *args)
{
    HookGuard *guard = (HookGuard *)self;
    PyObject *getter, *name;
    if (!PyArg_ParseTuple(args, "OU:add_root", &getter, &name)) {
        return NULL;
    }
    Root **roots = PyMem_Realloc(guard->roots, (guard->n_roots + 1) * sizeof(Root *));
    if (roots == NULL) {
        return PyErr_NoMemory();
    }
    guard->roots = roots;
    Root *root = PyMem_Calloc(1, sizeof(Root));
    if (root == NULL) {
        return PyErr_NoMemory();
    }
    root->memos = PyDict_New();
    root->getter = Py_NewRef(getter);
    if (root->memos == NULL || Root_add(root, -1, NULL, name) == NULL) {
        Py_XDECREF(root->memos);
        Py_DECREF(getter);
        PyMem_Free(root);
        return NULL;
    }
    roots[guard->n_roots] = root;
    return PyLong_FromSsize_t(guard->n_roots++);
}

static Root *
HookGuard_root(HookGuard *guard, Py_ssize_t index, Py_ssize_t node)
{
    if (index < 0 || index >= guard->n_roots || node < 0 ||
        node >= guard->roots[index]->n) {
        PyErr_SetString(PyExc_IndexError, "there is no such module in this HookGuard");
        return NULL;
    }
    return guard->roots[index];
}

static PyObject *
HookGuard_add_child(PyObject *self, PyObject *args)
{
    Py_ssize_t index, parent;
    PyObject *key, *name;
    if (!PyArg_ParseTuple(args, "nnUU:add_child", &index, &parent, &key, &name)) {
        return NULL;
    }
    Root *root = HookGuard_root((HookGuard *)self, index, parent);
    if (root == NULL || Root_add(root, parent, key, name) == NULL) {
        return NULL;
    }
    return PyLong_FromSsize_t(root->n - 1);
}

static PyObject *
HookGuard_expect(PyObject *self, PyObject *args)
{
    Py_ssize_t index, i, sizes[N_KINDS];
    int is_plain;
    PyObject *check;
    if (!PyArg_ParseTuple(args, "nn(nnnn)pO:expect", &index, &i, &sizes[0], &sizes[1],
                          &sizes[2], &sizes[3], &is_plain, &check)) {
        return NULL;
    }
    Root *root = HookGuard_root((HookGuard *)self, index, i);
    if (root == NULL) {
        return NULL;
    }
    Node *node = &root->nodes[i];
    root->n_hooked -= node->is_hooked;
    node->is_called = true;
    node->is_plain = is_plain;
    node->is_hooked = false;
    for (int k = 0; k < N_KINDS; k++) {
        node->sizes[k] = sizes[k];
        node->is_hooked |= sizes[k] > 0;
    }
    root->n_hooked += node->is_hooked;
    Py_XSETREF(node->check, Py_NewRef(check));
    Py_RETURN_NONE;
}

static PyObject *
HookGuard_n_memos(PyObject *self, void *closure)
{
    HookGuard *guard = (HookGuard *)self;
    Py_ssize_t n = 0;
    for (Py_ssize_t i = 0; i < guard->n_roots; i++) {
        n += PyDict_GET_SIZE(guard->roots[i]->memos);
    }
    return PyLong_FromSsize_t(n);
}

static void
Root_free(Root *root)
{
    Py_ssize_t position = 0;
    PyObject *key, *memo;
    while (PyDict_Next(root->memos, &position, &key, &memo)) {
        Memo_forget((Memo *)memo);
    }
    Py_DECREF(root->memos);
    Py_DECREF(root->getter);
    for (Py_ssize_t i = 0; i < root->n; i++) {
        Py_XDECREF(root->nodes[i].key);
        Py_DECREF(root->nodes[i].name);
        Py_XDECREF(root->nodes[i].check);
    }
    PyMem_Free(root->nodes);
    PyMem_Free(root);
}

static void
HookGuard_dealloc(PyObject *self)
{
    HookGuard *guard = (HookGuard *)self;
    PyTypeObject *type = Py_TYPE(self);
    for (Py_ssize_t i = 0; i < guard->n_roots; i++) {
        Root_free(guard->roots[i]);
    }
    PyMem_Free(guard->roots);
    Py_XDECREF(guard->report);
    Py_XDECREF(guard->any_global_mark);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
HookGuard_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *report, *any_global_mark;
    if (!PyArg_ParseTuple(args, "O!O:HookGuard", &PyList_Type, &report,
                          &any_global_mark)) {
        return NULL;
    }
    HookGuard *guard = (HookGuard *)type->tp_alloc(type, 0);
    if (guard != NULL) {
        guard->report = Py_NewRef(report);
        guard->any_global_mark = Py_NewRef(any_global_mark);
    }
    return (PyObject *)guard;
}

static PyMethodDef HookGuard_methods[] = {
    {"add_root", HookGuard_add_root, METH_VARARGS,
     "add_root(getter, name): a module that is found without other modules. Returns the "
     "index of the root; its node is 0."},
    {"add_child", HookGuard_add_child, METH_VARARGS,
     "add_child(root, parent, key, name): a module in the _modules of another. Returns "
     "the index of its node."},
    {"expect", HookGuard_expect, METH_VARARGS,
     "expect(root, node, sizes, is_plain, check): what the hooks of a module have to be."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef HookGuard_getset[] = {
    {"n_memos", HookGuard_n_memos, NULL, "Number of root modules it remembers.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot HookGuard_slots[] = {
    {Py_tp_doc,
     "HookGuard(report, any_global_mark): see python_hook_guard.py, which has the same class."},
    {Py_tp_new, HookGuard_new},
    {Py_tp_dealloc, HookGuard_dealloc},
    {Py_tp_call, HookGuard_call},
    {Py_tp_methods, HookGuard_methods},
    {Py_tp_getset, HookGuard_getset},
    {0, NULL},
};

static PyType_Spec HookGuard_spec = {
    .name = "torch._dynamo.nn_module_hooks._hook_guard.HookGuard",
    .basicsize = sizeof(HookGuard),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = HookGuard_slots,
};

/* ---- The module -------------------------------------------------------------- */

static int
intern(PyObject **names, const char *const *texts, int n)
{
    for (int i = 0; i < n; i++) {
        names[i] = PyUnicode_InternFromString(texts[i]);
        if (names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

static PyTypeObject *
find_ordered_dict(void)
{
    PyObject *collections = PyImport_ImportModule("collections");
    PyObject *type =
        collections == NULL ? NULL : PyObject_GetAttrString(collections, "OrderedDict");
    Py_XDECREF(collections);
    return (PyTypeObject *)type;
}

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_hook_guard",
    .m_doc = "Whether the hooks of a compiled frame's modules are as they were.",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__hook_guard(void)
{
    static const char *const modules = "_modules";
    if (intern(hooks_names, HOOKS, N_KINDS) < 0 || intern(marks_names, MARKS, N_MARKS) < 0 ||
        intern(&modules_name, &modules, 1) < 0) {
        return NULL;
    }
    ordered_dict = find_ordered_dict();
    memo_type = (PyTypeObject *)PyType_FromSpec(&Memo_spec);
    if (ordered_dict == NULL || memo_type == NULL) {
        return NULL;
    }
#if !HAS_VERSION_TAGS
    module_watcher = PyDict_AddWatcher(module_changes);
    hooks_watcher = module_watcher < 0 ? -1 : PyDict_AddWatcher(hooks_change);
    if (hooks_watcher < 0) {
        /* All are taken: only an ImportError makes way for the guard in Python. */
        PyErr_SetString(PyExc_ImportError, "there are no more dict watchers");
        return NULL;
    }
#endif
    PyObject *module = PyModule_Create(&module_def);
    PyObject *type = module == NULL ? NULL : PyType_FromSpec(&HookGuard_spec);
    if (type == NULL || PyModule_AddObjectRef(module, "HookGuard", type) < 0) {
        Py_XDECREF(type);
        Py_XDECREF(module);
        return NULL;
    }
    Py_DECREF(type);
    return module;
}
