/* The host service: none to be had, and one that dies. It holds here only: the kernel does not die. */
#include "private.h"

#include <sys/syscall.h>

static struct rdma_event_channel *waited_on;
static volatile pid_t waiter;
static int answer, answer_errno;

static void *waits(void *unused)
{
	struct rdma_cm_event *event;

	(void)unused;
	waiter = (pid_t)syscall(SYS_gettid);
	answer = rdma_get_cm_event(waited_on, &event);
	answer_errno = errno;
	return NULL;
}

static void is_none(void)
{
	const char *rule = "channel-enodev";
	const char *program = getenv("OARLOCK_HOSTD");
	char *kept = program ? strdup(program) : NULL;
	struct rdma_cm_id *id;

	CHECK(rule, setenv("OARLOCK_HOSTD", "/nonexistent/oarlock", 1) == 0);
	errno = 0;
	CHECK(rule, rdma_create_event_channel() == NULL && errno == ENODEV);
	FAILS("id-enodev", rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), ENODEV);
	if (kept)
		setenv("OARLOCK_HOSTD", kept, 1);
	else
		unsetenv("OARLOCK_HOSTD");
	ok(rule);
	ok("id-enodev");
}

/* Packets between programs of a host pass through the loopback interface: without it there are no channels and queue pairs. */
static void has_no_loopback(void)
{
	const char *rule = "channel-enetdown";
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = list && list[0] ? ibv_open_device(list[0]) : NULL;
	struct ibv_pd *pd = context ? ibv_alloc_pd(context) : NULL;
	struct ibv_cq *cq = context ? ibv_create_cq(context, 1, NULL, NULL, 0) : NULL;
	struct ibv_qp_init_attr attr = { .send_cq = cq, .recv_cq = cq, .cap = { 1, 1, 1, 1 }, .qp_type = IBV_QPT_RC };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_qp *qp;

	CHECK(rule, pd && cq);
	set_loopback(rule, 0);
	/* The service hears of it by a message. */
	for (int i = 0; i < 500 && (channel = rdma_create_event_channel()); i++) {
		rdma_destroy_event_channel(channel);
		usleep(10000);
	}
	errno = 0;
	CHECK(rule, rdma_create_event_channel() == NULL && errno == ENETDOWN);
	FAILS(rule, rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP), ENETDOWN);
	errno = 0;
	CHECK("qp-enetdown", ibv_create_qp(pd, &attr) == NULL && errno == ENETDOWN);
	set_loopback(rule, IFF_UP);
	for (int i = 0; i < 500 && !(channel = rdma_create_event_channel()); i++)
		usleep(10000);
	CHECK(rule, channel != NULL);
	rdma_destroy_event_channel(channel);
	qp = ibv_create_qp(pd, &attr);
	CHECK("qp-enetdown", qp != NULL && ibv_destroy_qp(qp) == 0);
	CHECK(rule, ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
	ibv_free_device_list(list);
	ok(rule);
	ok("qp-enetdown");
}

static void dies(void)
{
	const char *rule = "event-service-gone";
	struct rdma_event_channel *first = new_channel(rule), *second = new_channel(rule), *fresh;
	struct rdma_cm_id *id = new_id(rule, first, RDMA_PS_TCP), *other;
	struct rdma_cm_event *event;
	pthread_t made;

	waited_on = first;
	made = thread(rule, waits, NULL);
	while (!waiter)
		usleep(1000);
	until_asleep(rule, waiter);
	kill_service(rule);
	CHECK(rule, pthread_join(made, NULL) == 0);
	CHECK(rule, answer == -1 && answer_errno == EIO);
	FAILS(rule, rdma_get_cm_event(second, &event), EIO);
	ok(rule);
	FAILS("migrate-service-gone", rdma_migrate_id(id, second), EIO);
	FAILS("migrate-service-gone", rdma_migrate_id(id, NULL), EIO);
	CHECK("migrate-service-gone", id->channel == first);
	FAILS("channel-service-gone", rdma_create_id(first, &other, NULL, RDMA_PS_TCP), EIO);
	/* Another can be started. */
	fresh = new_channel("channel-service-gone");
	FAILS("migrate-service-gone", rdma_migrate_id(id, fresh), EIO);
	other = new_id("channel-service-gone", fresh, RDMA_PS_TCP);
	resolve("channel-service-gone", other, 1);
	destroy("channel-service-gone", other);
	rdma_destroy_event_channel(fresh);
	rdma_destroy_event_channel(first);
	rdma_destroy_event_channel(second);
	ok("migrate-service-gone");
	ok("channel-service-gone");
}

int main(int argc, char **argv)
{
	start(argc, argv);
	own_network("channel-enodev");
	PART(is_none());
	PART(has_no_loopback());
	PART(dies());
	return 0;
}
