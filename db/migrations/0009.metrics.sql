-- What the counters of /metrics remember: todos ever created, and which queues have a label of their own.

create table if not exists switchboard.created_totals (
    endpoint_id uuid   not null,
    queue       text   not null,
    source      text   not null,
    total       bigint not null,
    primary key (endpoint_id, queue, source)
) with (fillfactor = 50);
comment on table  switchboard.created_totals is 'Todos created so far; those from created_fold on are added by the reader.';
comment on column switchboard.created_totals.endpoint_id is 'The endpoint.';
comment on column switchboard.created_totals.queue is 'The queue.';
comment on column switchboard.created_totals.source is 'Where they came from: a source type, or agent, operator, sql, other.';
comment on column switchboard.created_totals.total is 'How many; only ever grows.';

create table if not exists switchboard.created_fold (
    singleton boolean primary key default true check (singleton),
    folded_to uuid    not null default '00000000-0000-0000-0000-000000000000',
    next_to   uuid    not null default '00000000-0000-0000-0000-000000000000',
    next_xid  xid8    not null default '0'
) with (fillfactor = 50);
comment on table  switchboard.created_fold is 'One row: how far created_totals has counted.';
comment on column switchboard.created_fold.singleton is 'Always true: keeps this table at one row.';
comment on column switchboard.created_fold.folded_to is 'Todos with smaller ids are in created_totals.';
comment on column switchboard.created_fold.next_to is 'Where the next fold will get to.';
comment on column switchboard.created_fold.next_xid is 'Once all transactions below this are over, nobody makes a todo below next_to any more.';

-- What is there already, once: everything up to a minute ago.
do $$
declare
    v_upto uuid := (lpad(to_hex((extract(epoch from now()) * 1000)::bigint - 60000), 12, '0') || '70008000000000000000')::uuid;
begin
    if exists (select from switchboard.created_fold) then
        return;
    elsif not exists (select from switchboard.todos) then
        insert into switchboard.created_fold default values;
        return;
    end if;
    insert into switchboard.created_fold (folded_to, next_to) values (v_upto, v_upto);
    insert into switchboard.created_totals (endpoint_id, queue, source, total)
    select t.endpoint_id, t.queue, case when t.trust_mode not in ('signed', 'token', 'open') then t.trust_mode::text
               when t.source in ('github', 'gitea', 'stripe', 'slack', 'standard', 'cairn', 'generic', 'open') then t.source else 'other' end, count(*)
    from switchboard.todos t where t.id < v_upto group by 1, 2, 3;
end $$;

create table if not exists switchboard.metric_queues (
    slot  integer primary key check (slot between 1 and 50),
    queue text    not null unique
);
comment on table  switchboard.metric_queues is 'The queues that have a label of their own in the metrics, for ever: all others are __other__, so that no counter ever goes down.';
comment on column switchboard.metric_queues.slot is 'One of the 50 places.';
comment on column switchboard.metric_queues.queue is 'The queue''s name, whosever it is.';
