package penstock.sinks.kafka;

import java.io.FileWriter;
import java.io.IOException;
import java.time.Duration;
import java.time.Instant;
import java.time.LocalDateTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import java.util.zip.CRC32C;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InterruptException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.Row;

/**
 * A task's side of the lanes: rows, and the mark of their source partition behind them, in one small Kafka transaction
 * after the other. It does what `run_task` of `tests/support/lane_model.py` says; tests compare its traces.
 *
 * Compiled by the Janino that Spark ships, which knows neither lambdas nor the inference of type arguments.
 */
public final class LaneWriter extends ForeachWriter {
    final HashMap producer, consumer;  // settings of the clients
    final HashMap begun;  // "OFFSET PART" that the driver has committed, by lane
    final String topic, marks, prefix, query;  // the sink's topic or null; the beginnings of marks topics and lane ids
    final long generation, latency;  // milliseconds
    final boolean multiplies;  // one source row may give several rows
    final int width, value, key, target, partition, headers, timestamp;  // places of the columns; -1: there is none
    private transient Lane lane;
    private transient long epoch;

    public LaneWriter(Map producer, Map consumer, Map begun, String topic, String marks, String prefix, String query,
            long generation, List columns, boolean multiplies, long latency) {
        this.producer = new HashMap(producer); this.consumer = new HashMap(consumer);
        this.begun = new HashMap(begun);
        this.topic = topic; this.marks = marks; this.prefix = prefix; this.query = query;
        this.generation = generation; this.multiplies = multiplies; this.latency = latency;
        this.width = columns.size() - 3;  // behind them the row's source topic, partition and offset
        List sink = columns.subList(0, this.width);
        this.value = sink.indexOf("value"); this.key = sink.indexOf("key"); this.target = sink.indexOf("topic");
        this.partition = sink.indexOf("partition"); this.headers = sink.indexOf("headers");
        this.timestamp = sink.indexOf("timestamp");
    }

    public boolean open(long partitionId, long epochId) {
        this.lane = null; this.epoch = epochId;
        return true;
    }

    public void process(Object given) {
        Row row = (Row) given;
        String source = row.getString(this.width);
        int number = row.getInt(this.width + 1);
        if (this.lane == null) this.lane = Lane.take(this, source, number, this.epoch);
        else if (this.lane.source.partition() != number || !this.lane.source.topic().equals(source))
            throw new IllegalStateException("a task has rows of " + this.lane.source + " and " + source + "-" + number);
        this.lane.row((byte[]) this.get(row, this.key), (byte[]) this.get(row, this.value), row,
            row.getLong(this.width + 2));
    }

    public void close(Throwable error) {
        if (this.lane == null) return;
        if (error == null) this.lane.end();
        else {
            this.lane.leave();
            this.lane.check();  // Spark knows of an interrupt only, where the timer has failed
        }
    }

    /** An error that the driver finds in the text of the failed query, as it does that of a task in Python. */
    static IllegalStateException fault(String error, String happened, String safe, String toDo, Throwable cause) {
        String plain = happened.replaceAll("[\"\\\\\\p{Cntrl}]", "'");
        return new IllegalStateException("penstock-task-error {\"error\": \"" + error + "\", \"happened\": \"" + plain
            + "\", \"safe\": \"" + safe + "\", \"to_do\": \"" + toDo + "\"} end-of-penstock-task-error", cause);
    }

    /** When a slice is to be committed: every interval, but not the first of several rows alone, and not before rows had
     *  half as long as commits usually take. Where brokers are slow, little else would happen than commits. All of these
     *  are nanoseconds: the moments at which the commit before and the slice began, and two spans. */
    public static long due(long began, long opened, long usual, long every) {
        return Math.max(began + every, opened + Math.max(every / 4, usual / 2));
    }

    /** How long commits usually take, after another one. A broker that was away for long is no usual one. */
    public static long usual(long before, long took) { return (3 * before + Math.min(took, 1000L * 1000 * 1000)) / 4; }

    Object get(Row row, int place) { return place < 0 ? null : row.get(place); }

    ProducerRecord record(Row row, byte[] key, byte[] value) {
        String topic = this.topic != null ? this.topic : (String) this.get(row, this.target);
        if (topic == null)
            throw fault("SchemaMismatch", "A row names no topic, and neither does the sink.", "it was not written.",
                "give KafkaSink a topic, or fill the column 'topic' in every row.", null);
        Integer partition = (Integer) this.get(row, this.partition);
        if (partition != null && partition.intValue() == -1) partition = null;
        Object time = this.get(row, this.timestamp);
        Long millis = null;
        if (time instanceof java.sql.Timestamp) millis = Long.valueOf(((java.sql.Timestamp) time).getTime());
        else if (time instanceof Instant) millis = Long.valueOf(((Instant) time).toEpochMilli());
        else if (time instanceof LocalDateTime)
            millis = Long.valueOf(((LocalDateTime) time).toInstant(ZoneOffset.UTC).toEpochMilli());
        List headers = null;
        if (this.headers >= 0 && !row.isNullAt(this.headers)) {
            headers = new ArrayList();
            for (Iterator i = row.getList(this.headers).iterator(); i.hasNext();) {
                Row header = (Row) i.next();
                headers.add(new RecordHeader(header.getString(0), (byte[]) header.get(1)));
            }
        }
        return new ProducerRecord(topic, partition, millis, key, value, headers);
    }

    /**
     * The owner of one source partition in this process: one producer, one mark, kept from batch to batch.
     *
     * The task's thread brings rows, `timer` commits what waits; `lock` is between them. After a failure the lane is of
     * no use any more: its slice is aborted, the task fails, and the next one opens the lane anew.
     */
    static final class Lane implements Runnable, Callback {
        static final ConcurrentHashMap LANES = new ConcurrentHashMap();
        static final ConcurrentHashMap NEWER = new ConcurrentHashMap();  // the newest generation, by lane and query
        static final long PATIENCE = 90L * 1000 * 1000 * 1000;  // nanoseconds without an answer of any broker
        static final long LEAVE = 400;  // milliseconds that a stopped task waits for its last commit, twice
        static final long WAIT = 500;  // milliseconds between looks for the driver's mark
        static final long PAUSE = 2L * 1000 * 1000;  // nanoseconds without a row: maybe its source row has no more
        static final long MOST = 8L << 20;  // bytes of a slice; the producer's buffer is larger

        final LaneWriter spec;
        final String id;
        final TopicPartition source, marks;
        final ReentrantLock lock = new ReentrantLock();
        final Condition wake = this.lock.newCondition();
        final CRC32C crc = new CRC32C();
        KafkaProducer producer;
        Metric closed;  // connections of the producer that were closed
        double closedBefore;
        boolean open;  // a transaction is
        long offset, part, digest;  // the mark: what is visible, together with the open slice
        long committedOffset = -1, committedPart;  // the newest one that is known to be visible; -1: none
        long seen = -1, seenPart;  // the newest row of this task: its offset, and which row of that offset it is
        boolean proven;  // the rows that a part counts have come again, the same ones
        long bytes, rows, micros;  // of the slice; of this owner; of the previous commit
        long began, opened, arrived;  // moments: the last commit and this slice began, the last row came
        long usual;  // nanoseconds of a commit
        long epoch;
        boolean whole;  // the last task ended well
        Thread task, timer;
        volatile boolean ending, deaf;
        volatile Throwable failure;

        /** The lane, ready for a task of batch `epoch`. One that another process may have had meanwhile is opened. */
        static Lane take(LaneWriter spec, String topic, int partition, long epoch) {
            Lane made = new Lane(spec, new TopicPartition(topic, partition), epoch);
            // A task that Spark tries again must not take the lane from the newer run each time.
            Object newer = NEWER.get(made.id + " " + spec.query);
            long newest = newer == null ? spec.generation : ((Long) newer).longValue();
            if (newest > spec.generation) throw made.superseded(spec.query, newest);
            NEWER.put(made.id + " " + spec.query, Long.valueOf(spec.generation));
            for (Iterator i = LANES.values().iterator(); i.hasNext();) {
                Lane other = (Lane) i.next();
                boolean old = other.spec.generation < spec.generation || !other.spec.query.equals(spec.query);
                if (other.spec.prefix.equals(spec.prefix) && old) other.leave();
            }
            Lane found = (Lane) LANES.get(made.id);
            if (found != null && found.resume(epoch)) return found;
            if (found != null) found.leave();
            LANES.put(made.id, made);
            made.start();
            return made;
        }

        Lane(LaneWriter spec, TopicPartition source, long epoch) {
            this.spec = spec; this.source = source; this.epoch = epoch;
            this.id = spec.prefix + ":lane:" + source.topic() + ":" + source.partition();
            this.marks = new TopicPartition(spec.marks + source.topic(), source.partition());
        }

        void start() {
            this.lock.lock();
            try {
                this.task = Thread.currentThread();
                String begun = (String) this.spec.begun.get(this.source.toString());
                if (begun != null) {
                    this.committedOffset = Long.parseLong(begun.split(" ")[0]);
                    this.committedPart = Long.parseLong(begun.split(" ")[1]);
                }
                this.trace("task " + this.spec.query + " " + this.spec.generation
                    + (this.spec.multiplies ? " several " : " single ") + (begun == null ? "none" : begun));
                this.open();
                this.timer = new Thread(this, "penstock-lane-" + this.source);
                this.timer.setDaemon(true);
                this.timer.start();
            } catch (Throwable error) {
                this.fail(error);
                this.shut();
                throw this.failed();
            } finally {
                this.lock.unlock();
            }
        }

        boolean resume(long epoch) {
            this.lock.lock();
            try {
                if (this.failure != null || this.ending || !this.whole || epoch != this.epoch + 1) return false;
                this.trace("begin");
                this.epoch = epoch; this.whole = false; this.task = Thread.currentThread();
                this.seen = -1; this.proven = this.part == 0;
                return true;
            } finally {
                this.lock.unlock();
            }
        }

        // The protocol. All of this under the lock.

        /** Become the owner, behind the newest mark of this run. In a partition that was added since the query started
         *  the driver has yet to write one. */
        void open() throws Exception {
            long until = System.nanoTime() + PATIENCE, least = this.committedOffset;
            while (true) {
                String[] found = this.fence();
                boolean ours = found != null && found[1].equals(this.spec.query);
                long generation = found == null ? -1 : Long.parseLong(found[2]);
                if (ours && generation == this.spec.generation) {
                    this.offset = Long.parseLong(found[4]); this.part = Long.parseLong(found[5]);
                    this.digest = Long.parseLong(found[6]);
                    this.proven = this.part == 0;
                    if (this.offset < least || this.offset == least && this.part < this.committedPart) {
                        this.abort();
                        throw this.lost("the newest mark is offset " + this.offset + " (part " + this.part + ")");
                    }
                    this.committedOffset = this.offset; this.committedPart = this.part;
                    this.opened = System.nanoTime();
                    return;
                }
                this.abort();
                if (ours && generation > this.spec.generation)
                    NEWER.put(this.id + " " + this.spec.query, Long.valueOf(generation));
                if (ours ? generation > this.spec.generation : found != null && least >= 0)
                    throw this.over("superseded", this.superseded(found[1], generation));
                if (least >= 0) throw this.lost("this run has no mark there");
                if (this.ending || System.nanoTime() > until)
                    throw new TimeoutException("the driver has not opened the lane");
                this.trace("wait");
                Thread.sleep(WAIT);
            }
        }

        /** Fence, begin a transaction with a record of our own, and read the newest mark before it, of any query. */
        String[] fence() throws Exception {
            this.deaf = true;  // to what becomes of an old producer's rows
            if (this.producer != null) this.producer.close(Duration.ZERO);
            this.deaf = false;
            HashMap settings = new HashMap(this.spec.producer);
            settings.put("transactional.id", this.id);
            this.producer = new KafkaProducer(settings);
            for (Iterator i = this.producer.metrics().entrySet().iterator(); i.hasNext();) {
                Map.Entry entry = (Map.Entry) i.next();
                MetricName name = (MetricName) entry.getKey();
                if (name.name().equals("connection-close-total") && name.group().equals("producer-metrics"))
                    this.closed = (Metric) entry.getValue();
            }
            for (long until = System.nanoTime() + PATIENCE;;) {
                try { this.producer.initTransactions(); break; }
                catch (TimeoutException error) { if (this.ending || System.nanoTime() > until) throw error; }
            }  // from here on no older owner can commit
            this.trace("init");
            this.point("lane.initialised");
            this.begin();
            Future sent = this.producer.send(this.record("open"));
            long end = ((RecordMetadata) sent.get(PATIENCE, TimeUnit.NANOSECONDS)).offset();
            this.trace("open " + end);
            this.point("lane.opened");
            String[] found = this.read(end);
            this.trace(found == null ? "read none"
                : "read " + found[1] + " " + found[2] + " " + found[4] + " " + found[5] + " " + found[6]);
            return found;
        }

        /** The newest committed mark before `end`, to which a reader of committed records comes exactly. */
        String[] read(long end) throws Exception {
            KafkaConsumer consumer = new KafkaConsumer(this.spec.consumer);
            try {
                List one = Collections.singletonList(this.marks);
                consumer.assign(one);
                long first = ((Long) consumer.beginningOffsets(one).get(this.marks)).longValue();
                long until = System.nanoTime() + PATIENCE;
                String[] found = null;
                for (long step = 200, from = end; found == null && from > first; step *= 10) {
                    from = Math.max(first, end - step);
                    consumer.seek(this.marks, from);
                    while (consumer.position(this.marks) < end) {
                        if (this.ending || System.nanoTime() > until) throw new TimeoutException("no marks came");
                        for (Iterator i = consumer.poll(Duration.ofMillis(500)).iterator(); i.hasNext();) {
                            ConsumerRecord record = (ConsumerRecord) i.next();
                            String[] fields = new String((byte[]) record.value(), "UTF-8").split(" ");
                            if (!fields[0].equals("1"))
                                throw new IllegalStateException("a mark has the unknown format " + fields[0]);
                            if (record.offset() < end && fields[3].equals("mark")) found = fields;
                        }
                    }
                }
                return found;
            } finally {
                consumer.close(Duration.ZERO);
            }
        }

        void begin() {
            this.closedBefore = ((Double) this.closed.metricValue()).doubleValue();
            this.producer.beginTransaction();
            this.open = true;
            this.bytes = 0;
            this.opened = System.nanoTime();
            this.wake.signal();
        }

        /** The mark behind the rows, then the commit: Kafka's log of transactions decides. `end`: the batch is over. */
        void commit(boolean end) throws Exception {
            this.check();
            if (!this.open) this.begin();
            this.began = System.nanoTime();
            this.producer.send(this.record("mark " + this.offset + " " + this.part + " " + this.digest + " " + this.rows
                + " " + this.micros), this);
            this.trace("mark " + this.offset + " " + this.part + " " + this.digest);
            this.point("lane.mark.sent");
            Throwable silent = null;
            try {
                for (long until = this.began + PATIENCE;;) {  // the same call may be made again after a timeout
                    try { this.producer.commitTransaction(); break; }
                    catch (TimeoutException error) {
                        if (this.ending || this.failure != null || System.nanoTime() > until) throw error;
                    }
                }
                this.open = false;
            } catch (InterruptException error) {
                throw error;
            } catch (ProducerFencedException error) {
                throw error;  // another owner: a retry of this task will see which
            } catch (InvalidProducerEpochException error) {
                throw error;
            } catch (RuntimeException error) {
                this.check();  // a row was not sent, so nothing was committed
                if (this.ending) throw error;
                silent = error;
            }
            // A request to commit that was never answered may still arrive, and would end the next slice. So does one
            // that was sent again because its connection was lost.
            if (silent != null || ((Double) this.closed.metricValue()).doubleValue() != this.closedBefore) {
                this.trace("unsure");
                if (!this.ending) this.again(end, silent);
            } else this.trace("commit");
            this.committedOffset = this.offset; this.committedPart = this.part;
            long took = System.nanoTime() - this.began;
            this.micros = took / 1000; this.usual = LaneWriter.usual(this.usual, took);
            this.point("lane.committed");
        }

        /** Open the lane anew, which shows what became of the slice. */
        void again(boolean end, Throwable silent) throws Exception {
            long offset = this.offset, part = this.part;
            boolean proven = this.proven;
            this.open();
            if (this.offset != offset || this.part != part) {
                this.abort();
                throw this.over("gone", fault("SystemUnavailable", "Kafka did not commit the rows of " + this.source
                    + " up to offset " + offset + ", and did not answer.", "none of these rows is visible.",
                    "nothing: Spark runs the task again.", silent));
            }
            this.proven = proven;
            if (end) this.abort();
        }

        void abort() throws Exception {
            this.producer.abortTransaction();
            this.open = false;
            this.trace("abort");
        }

        /** The owner ends with that word. */
        IllegalStateException over(String word, IllegalStateException error) {
            this.trace(word);
            this.ended = true;
            return error;
        }

        IllegalStateException superseded(String query, long generation) {
            return fault("Superseded", "Generation " + this.spec.generation + " of query " + this.spec.query
                + " has lost the lane of " + this.source + " to generation " + generation + " of query " + query + ".",
                "this run has committed nothing since.", "nothing, if a newer run of the job is meant to be there;"
                + " otherwise stop it and start this one again.", null);
        }

        IllegalStateException lost(String there) {
            String known = "offset " + this.committedOffset + " (part " + this.committedPart + ")";
            return this.over("lost", fault("MarksLost", "The marks of " + this.source + " are lost: " + known
                + " is known to be visible, but " + there + ".", "nothing was written.",
                "restore the job from its newest checkpoint; rows that became visible after it come again.", null));
        }

        IllegalStateException differs(String word) {
            return this.over(word, fault("ReplayDiffers", "Offset " + this.offset + " of " + this.source
                + " gives other rows than before: " + this.part + " of them are visible.",
                "no row of it was written twice.", "make the query deterministic, or restore it from its newest"
                + " checkpoint.", null));
        }

        ProducerRecord record(String text) throws Exception {
            text = "1 " + this.spec.query + " " + this.spec.generation + " " + text;
            return new ProducerRecord(this.marks.topic(), Integer.valueOf(this.marks.partition()),
                this.source.toString().getBytes("UTF-8"), text.getBytes("UTF-8"));
        }

        // The task.

        void row(byte[] key, byte[] value, Row row, long offset) {
            try { this.lock.lockInterruptibly(); }
            catch (InterruptedException error) {
                this.check();  // the timer interrupts a task whose lane has failed
                throw new InterruptException(error);
            }
            try {
                this.check();
                this.arrived = System.nanoTime();
                boolean first = offset != this.seen, several = this.spec.multiplies;
                if (this.open && (this.bytes >= MOST || first && this.arrived >= this.due())) {
                    if (first && this.part > 0 && this.proven && offset > this.offset) {
                        // The source row before has no more rows.
                        this.trace("next " + offset);
                        this.offset = offset; this.part = 0; this.digest = 0;
                    }
                    this.commit(false);
                }
                if (offset < this.seen)
                    throw new IllegalStateException(this.source + ": " + offset + " came after " + this.seen);
                if (first) { this.seen = offset; this.seenPart = 0; this.crc.reset(); }
                this.seenPart++;
                if (several) { this.add(key); this.add(value); }
                long digest = several ? this.crc.getValue() : 0;
                boolean at = offset == this.offset;
                if (at && this.seenPart == this.part) this.proven = digest == this.digest;
                if (offset > this.offset && !this.proven || at && this.seenPart >= this.part && !this.proven
                        || !first && !several)
                    throw this.differs("differs " + offset + " " + digest);
                if (offset < this.offset || at && this.seenPart <= this.part) {
                    if (TRACE != null) this.trace("drop " + offset + " " + digest);
                    return;
                }
                if (!this.open) this.begin();
                this.producer.send(this.spec.record(row, key, value), this);
                if (TRACE != null) this.trace("row " + offset + " " + digest);
                this.point("lane.sent");
                this.bytes += (key == null ? 0 : key.length) + (value == null ? 0 : value.length);
                this.rows++;
                this.offset = several ? offset : offset + 1;
                this.part = several ? this.seenPart : 0;
                this.digest = digest;
            } catch (Throwable error) {
                this.fail(error);
                throw this.failed();
            } finally {
                this.lock.unlock();
            }
        }

        /** Length and bytes, so that no byte can move between key and value; -1 for null. */
        void add(byte[] bytes) {
            int length = bytes == null ? -1 : bytes.length;
            for (int shift = 24; shift >= 0; shift -= 8) this.crc.update(length >> shift);
            if (bytes != null) this.crc.update(bytes, 0, length);
        }

        /** The batch is over, and all rows of its source rows have come. */
        void end() {
            try { this.lock.lockInterruptibly(); }
            catch (InterruptedException error) {
                this.ending = true;
                this.check();
                throw new InterruptException(error);
            }
            try {
                this.release();
                this.check();
                this.trace("end");
                if (this.part > 0 && this.seen == this.offset) {
                    if (!this.proven) throw this.differs("differs");
                    this.offset++; this.part = 0; this.digest = 0;
                }
                // Without a part: another process may have the next batch, which has no rows of this offset.
                if (this.open || this.offset != this.committedOffset || this.part != this.committedPart)
                    this.commit(true);
                this.whole = true;
            } catch (Throwable error) {
                this.fail(error);
                throw this.failed();
            } finally {
                this.lock.unlock();
            }
        }

        /** The task failed or was stopped. What has come so far is committed, if that takes no time. */
        void leave() {
            this.release();
            this.ending = true;
            try {
                if (this.lock.tryLock(LEAVE, TimeUnit.MILLISECONDS)) {
                    try { this.wake.signal(); } finally { this.lock.unlock(); }
                }
                if (this.timer != null) this.timer.join(LEAVE);
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }

        /** The thread goes its way: no interrupt of ours reaches it from now on. */
        synchronized void release() {
            if (this.task == Thread.currentThread()) Thread.interrupted();
            this.task = null;
        }

        synchronized void interrupt() {
            if (this.task != null && this.task != Thread.currentThread()) this.task.interrupt();
        }

        void check() { if (this.failure != null) throw this.failed(); }

        void fail(Throwable error) {
            if (error instanceof ExecutionException && error.getCause() != null) error = error.getCause();
            if (this.failure == null) this.failure = error;
            this.wake.signal();
        }

        IllegalStateException failed() {
            Throwable why = this.failure;
            String text = "" + why.getMessage();
            if (text.startsWith("penstock-")) return new IllegalStateException(text, why);
            String error = "PreCommitFailed", toDo = "nothing: Spark runs the task again, or the job restarts.";
            if (why instanceof RecordTooLargeException) {
                error = "ValueTooLarge";
                toDo = "raise the topic's max.message.bytes, or filter such rows.";
            } else if (why instanceof AuthorizationException || why instanceof AuthenticationException) {
                error = "AccessDenied";
                toDo = "check user and password, and the ACLs: WRITE on the topic, WRITE and READ on the marks topic,"
                    + " WRITE and DESCRIBE on transactional ids with the sink's prefix.";
            }
            return fault(error, "The lane of " + this.source + " failed: " + why.getClass().getSimpleName() + ": "
                + text, "rows behind its mark are not visible.", toDo, why);
        }

        // The timer.

        long due() { return LaneWriter.due(this.began, this.opened, this.usual, this.spec.latency * 1000 * 1000); }

        public void run() {
            this.lock.lock();
            try {
                while (this.failure == null && !this.ending) {
                    long due = this.due();
                    // Rather between two source rows than within one: the next row shows that one has ended.
                    if (this.part > 0)
                        due = Math.min(due + this.spec.latency * 1000 * 1000, Math.max(due, this.arrived + PAUSE));
                    long wait = this.open ? due - System.nanoTime() : Long.MAX_VALUE;
                    if (wait > 0) this.wake.awaitNanos(wait);
                    else this.commit(false);
                }
                if (this.open && this.failure == null) this.commit(false);
            } catch (Throwable error) {
                this.fail(error);
            }
            try { this.shut(); } finally { this.lock.unlock(); }
        }

        /** Nothing is sent any more. The task, which may wait for rows, learns of a failure. */
        void shut() {
            LANES.remove(this.id, this);
            if (this.failure != null) this.interrupt();
            try {
                if (this.open) this.producer.abortTransaction();
            } catch (Throwable ignored) {
                // fenced, or no broker answers: the next owner's opening aborts it
            } finally {
                if (this.producer != null) this.producer.close(Duration.ZERO);
                this.trace(null);
            }
        }

        /** A row or a mark could not be sent: the next commit does not happen. */
        public void onCompletion(RecordMetadata metadata, Exception error) {
            if (error != null && this.failure == null && !this.deaf) this.failure = error;
        }

        // For tests: a line per action in a file of its own, and points at which the process ends.

        static final String TRACE = System.getProperty("penstock.lane.trace");
        static final String FAILPOINT = System.getProperty("penstock.lane.failpoint", "");  // NAME:kill or NAME@N:kill
        static final AtomicInteger OWNERS = new AtomicInteger(), PASSED = new AtomicInteger();
        FileWriter traces;
        boolean ended;

        void trace(String line) {
            if (TRACE == null) return;
            try {
                if (this.traces == null)
                    this.traces = new FileWriter(TRACE + "." + this.source + "." + System.currentTimeMillis() + "."
                        + OWNERS.incrementAndGet());
                if (line == null && (this.failure == null || this.ended)) { this.traces.close(); return; }
                this.traces.write((line == null ? "failed" : line) + "\n");
                this.traces.flush();
                if (line == null) this.traces.close();
            } catch (IOException error) {
                throw new IllegalStateException(error);
            }
        }

        void point(String name) {
            if (FAILPOINT.isEmpty()) return;
            if (!FAILPOINT.equals(name + ":kill") && !FAILPOINT.startsWith(name + "@")) return;
            if (!FAILPOINT.endsWith("@" + PASSED.incrementAndGet() + ":kill") && FAILPOINT.indexOf('@') > 0) return;
            this.producer.flush();  // what was sent is at the broker
            Runtime.getRuntime().halt(137);
        }
    }
}
