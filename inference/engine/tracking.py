"""What a live sequence has given out so far: its text, its probabilities, why it stops.

Between the scheduler, which knows token ids only, and the engine's answers, which carry text.
"""

from __future__ import annotations

from inference.engine.batch import Batch, RawLogprobs
from inference.engine.detokenizer import Detokenizer
from inference.engine.outputs import SequenceEnd, SequenceUpdate
from inference.engine.sequence import Sequence, SequenceId
from inference.engine.tokenizer import Tokenizer
from inference.generation import FinishReason, TokenLogprob, TokenLogprobs


class News:
    """The updates of one step, one per sequence that there is something to tell of."""

    def __init__(self) -> None:
        self._updates: dict[SequenceId, SequenceUpdate] = {}

    @property
    def updates(self) -> list[SequenceUpdate]:
        return list(self._updates.values())

    def of(self, sequence: Sequence) -> SequenceUpdate:
        """The sequence's update, begun if there is none."""
        return self._updates.setdefault(sequence.seq_id, SequenceUpdate(seq_id=sequence.seq_id))

    def announce(self, batch: Batch) -> None:
        """What the scheduling alone did."""
        for sequence in batch.preempted:
            self.of(sequence).preempted = True
        for sequence in batch.resumed:
            self.of(sequence).resumed = True
        for sequence in batch.scheduled_first:
            update = self.of(sequence)
            update.first_scheduled = True
            update.cached_prompt_tokens = sequence.num_cached_prompt


class Tracker:
    """One per sequence, from `Engine.add` to its end."""

    def __init__(self, sequence: Sequence, tokenizer: Tokenizer) -> None:
        self.sequence = sequence
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(tokenizer, sequence.params.stop)
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprobs] = []
        self._told_prompt_logprobs = False

    def follow(self, token_id: int | None, raw: RawLogprobs | None, news: News) -> bool:
        """Tell what the step led to, None: no token. True if the sequence ends with it."""
        if self._has_prompt_logprobs_to_tell:
            self._told_prompt_logprobs = True
            news.of(self.sequence).prompt_logprobs = self._prompt_logprobs()
        if token_id is not None:
            update = news.of(self.sequence)
            self._take(token_id, raw, update)
            return update.finish is not None
        if self.sequence.num_pending == 0:  # nothing was to be sampled, and all is computed
            self._finish(FinishReason.LENGTH, news.of(self.sequence))
            return True
        return False

    def fail(self, message: str, news: News) -> None:
        """Tell that it ends with an error, and what text it still had."""
        update = news.of(self.sequence)
        update.error = message
        self._finish(FinishReason.ERROR, update)

    def give_up(self, message: str, news: News) -> None:
        """As `fail`, for when text is what failed: none is tried for again."""
        update = news.of(self.sequence)
        update.finish, update.error = FinishReason.ERROR, message

    def end(self) -> SequenceEnd:
        """Everything, for one that is aborted."""
        unsent = self._detokenizer.flush(may_stop=self._may_stop)
        self._texts.append(unsent)
        sequence = self.sequence
        return SequenceEnd(
            seq_id=sequence.seq_id,
            token_ids=list(sequence.output_ids),
            text="".join(self._texts),
            unsent_text=unsent,
            logprobs=self._logprobs if sequence.params.logprobs is not None else None,
            prompt_logprobs=self._prompt_logprobs() if self._told_prompt_logprobs else None,
            cached_prompt_tokens=sequence.num_cached_prompt,
            preemptions=sequence.preemptions,
            was_scheduled=sequence.was_scheduled,
        )

    def _take(self, token_id: int, raw: RawLogprobs | None, update: SequenceUpdate) -> None:
        update.token_ids.append(token_id)
        self._take_logprobs(raw, update)
        if self._is_stop_token(token_id):
            update.stop_reason = self._stop_reason(token_id)
            self._finish(FinishReason.STOP, update)
            return
        self._show(self._detokenizer.push([token_id], may_stop=self._may_stop), update)
        if self._detokenizer.stopped_by is not None:
            self._finish(FinishReason.STOP, update)
        elif self.sequence.remaining < 1:
            self._finish(FinishReason.LENGTH, update)

    def _finish(self, reason: FinishReason, update: SequenceUpdate) -> None:
        """Tell the rest of the text and the end. The rest may still bring a stop string."""
        self._show(self._detokenizer.flush(may_stop=self._may_stop), update)
        update.finish = reason
        if reason is not FinishReason.ERROR and (stop := self._detokenizer.stopped_by) is not None:
            update.finish, update.stop_reason = FinishReason.STOP, stop

    @property
    def _may_stop(self) -> bool:
        return len(self.sequence.output_ids) >= self.sequence.params.min_tokens

    def _is_stop_token(self, token_id: int) -> bool:
        params = self.sequence.params
        is_eos = token_id in self.sequence.eos_ids and not params.ignore_eos
        return self._may_stop and (is_eos or token_id in params.stop_token_ids)

    def _stop_reason(self, token_id: int) -> int | None:
        """As vLLM has it: the id if it was asked for, none for the model's own end."""
        return token_id if token_id in self.sequence.params.stop_token_ids else None

    @property
    def _has_prompt_logprobs_to_tell(self) -> bool:
        asked = self.sequence.params.prompt_logprobs is not None
        waiting = self._told_prompt_logprobs or self.sequence.wants_prompt_logprobs
        return asked and not waiting

    def _show(self, text: str, update: SequenceUpdate) -> None:
        self._texts.append(text)
        update.text += text

    def _take_logprobs(self, raw: RawLogprobs | None, update: SequenceUpdate) -> None:
        if self.sequence.params.logprobs is None or raw is None:
            return
        entry = self._named(raw)
        self._logprobs.append(entry)
        update.logprobs = [*(update.logprobs or ()), entry]

    def _prompt_logprobs(self) -> list[TokenLogprobs | None]:
        return [None, *map(self._named, self.sequence.prompt_logprobs)]

    def _named(self, raw: RawLogprobs) -> TokenLogprobs:
        top = zip(raw.top_ids, raw.top_logprobs, strict=True)
        return TokenLogprobs(
            sampled=self._one(raw.token_id, raw.logprob),
            top=tuple(self._one(token_id, logprob) for token_id, logprob in top),
        )

    def _one(self, token_id: int, logprob: float) -> TokenLogprob:
        text = self._tokenizer.token_text(token_id)
        return TokenLogprob(token_id=token_id, token=text, logprob=logprob)
