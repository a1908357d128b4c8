/* Forked children: what they may not do with their parent's objects, and what they may do themselves. */
#include "rule.h"

/* Runs in a child, which ends with 0 when all is well. */
static void child(const char *rule, void (*run)(void *), void *with)
{
	pid_t pid = fork();
	int status;

	CHECK(rule, pid >= 0);
	if (pid == 0) {
		alarm(60);
		run(with);
		exit(0);
	}
	CHECK(rule, waitpid(pid, &status, 0) == pid);
	CHECK(rule, WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void must_not(void *with)
{
	const char *rule = "channel-fork";
	struct pair *pair = with;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	int reuse = 1;

	FAILS(rule, rdma_get_cm_event(pair->active_channel, &event), EACCES);
	FAILS(rule, rdma_create_id(pair->active_channel, &id, NULL, RDMA_PS_TCP), EACCES);
	FAILS(rule, rdma_disconnect(pair->active), EACCES);
	FAILS(rule, rdma_listen(pair->listener, 1), EACCES);
	FAILS(rule, rdma_set_option(pair->listener, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof reuse),
	      EACCES);
	FAILS(rule, rdma_migrate_id(pair->active, pair->passive_channel), EACCES);
	FAILS(rule, rdma_destroy_id(pair->active), EACCES);
	rdma_destroy_event_channel(pair->active_channel);
}

/* A listener, a connection, the whole course of it. */
static void does_it_all(void *with)
{
	const char *rule = with;
	struct pair pair = connected(rule);

	CHECK(rule, rdma_disconnect(pair.active) == 0);
	expect(rule, pair.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rule, rdma_disconnect(pair.passive) == 0);
	expect(rule, pair.active_channel, RDMA_CM_EVENT_DISCONNECTED);
	end(rule, &pair);
}

static void both(void *with)
{
	must_not(with);
	does_it_all("channel-fork");
}

static void ends_at_once(void *with)
{
	(void)with;
	_exit(0);
}

/* The parent goes on with what it has. */
static void goes_on(const char *rule, struct pair *pair)
{
	struct rdma_cm_id *id = new_id(rule, pair->active_channel, RDMA_PS_TCP);

	resolve(rule, id, port_of(pair->listener));
	destroy(rule, id);
	CHECK(rule, !readable(pair->active_channel->fd, 0));
	CHECK(rule, !readable(pair->passive_channel->fd, 0));
}

/* As daemon(3) does, before anything is used. */
static void becomes_a_daemon(const char *rule)
{
	CHECK(rule, daemon(1, 1) == 0);
	alarm(60);
	does_it_all((void *)rule);
}

int main(int argc, char **argv)
{
	struct pair pair;

	start(argc, argv);
	as_daemon("fork-daemon", becomes_a_daemon);
	/* Every one has a child of its own, and they have children. */
	child("fork-child", does_it_all, "fork-child");
	pair = connected("channel-fork");
	child("channel-child-exit", ends_at_once, NULL);
	goes_on("channel-child-exit", &pair);
	child("channel-fork", both, &pair);
	goes_on("channel-child-exit", &pair);
	child("fork-child", does_it_all, "fork-child");
	ok("channel-fork");
	ok("fork-child");
	CHECK("channel-child-exit", rdma_disconnect(pair.active) == 0);
	expect("channel-child-exit", pair.passive_channel, RDMA_CM_EVENT_DISCONNECTED);
	CHECK("channel-child-exit", rdma_disconnect(pair.passive) == 0);
	expect("channel-child-exit", pair.active_channel, RDMA_CM_EVENT_DISCONNECTED);
	end("channel-child-exit", &pair);
	ok("channel-child-exit");
	return 0;
}
